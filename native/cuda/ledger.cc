#include "cuda/ledger.h"

#include <utility>

namespace vkv::cuda {

void Ledger::AddReservation(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  contents_.reservations[address] = bytes;
}

bool Ledger::RemoveReservation(uint64_t address, uint64_t& bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = contents_.reservations.find(address);
  if (found == contents_.reservations.end()) return false;
  bytes = found->second;
  contents_.reservations.erase(found);
  return true;
}

void Ledger::AddMapping(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  contents_.mappings[address] = bytes;
}

bool Ledger::RemoveMappings(uint64_t address, uint64_t bytes, std::map<uint64_t, uint64_t>& removed) {
  const std::lock_guard lock(mutex_);
  uint64_t removed_bytes = 0;
  auto mapping = contents_.mappings.lower_bound(address);
  while (mapping != contents_.mappings.end() && mapping->first - address < bytes) {
    removed_bytes += mapping->second;
    removed.insert(contents_.mappings.extract(mapping++));
  }
  // They do not overlap: as many bytes fill it, unless the last of them reaches beyond it.
  const auto last = removed.rbegin();
  return removed_bytes == bytes && last != removed.rend() && last->first - address + last->second <= bytes;
}

void Ledger::AddMappings(std::map<uint64_t, uint64_t>& mappings) {
  const std::lock_guard lock(mutex_);
  contents_.mappings.merge(mappings);
}

void Ledger::AddPage(PageHandle page, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (contents_.pages.emplace(page, bytes).second) contents_.page_bytes += bytes;
}

bool Ledger::RemovePage(PageHandle page, uint64_t& bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = contents_.pages.find(page);
  if (found == contents_.pages.end()) return false;
  bytes = found->second;
  contents_.page_bytes -= bytes;
  contents_.pages.erase(found);
  return true;
}

void Ledger::AddStream(Stream stream) {
  const std::lock_guard lock(mutex_);
  contents_.streams.insert(stream);
}

bool Ledger::RemoveStream(Stream stream) {
  const std::lock_guard lock(mutex_);
  return contents_.streams.erase(stream) != 0;
}

void Ledger::AddEvent(Event event) {
  const std::lock_guard lock(mutex_);
  contents_.events.insert(event);
}

bool Ledger::RemoveEvent(Event event) {
  const std::lock_guard lock(mutex_);
  return contents_.events.erase(event) != 0;
}

void Ledger::AddRegistration(uint64_t address) {
  const std::lock_guard lock(mutex_);
  contents_.registrations.insert(address);
}

bool Ledger::RemoveRegistration(uint64_t address) {
  const std::lock_guard lock(mutex_);
  return contents_.registrations.erase(address) != 0;
}

Leftovers Ledger::Count() const {
  const std::lock_guard lock(mutex_);
  return {contents_.reservations.size(), contents_.mappings.size(), contents_.pages.size(),
          contents_.streams.size(),      contents_.events.size(),   contents_.registrations.size()};
}

uint64_t Ledger::page_bytes() const {
  const std::lock_guard lock(mutex_);
  return contents_.page_bytes;
}

Ledger::Contents Ledger::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(contents_, {});
}

}  // namespace vkv::cuda
