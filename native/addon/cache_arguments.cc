#include "addon/cache_arguments.h"

namespace vkv::addon {

std::span<const GrowCommand> CacheArguments::Grows() {
  const auto commands = Entries<GrowCommand>(0, 1);
  for (const GrowCommand& command : commands) {
    if (command.slot < 0 || command.slot >= slots() || command.rows < 0 || command.rows > rows()) Refuse(command.slot);
  }
  return commands;
}

std::span<const SlideCommand> CacheArguments::Slides() {
  const auto commands = Entries<SlideCommand>(0, 1);
  for (const auto& [slot, first, end] : commands) {
    if (slot < 0 || slot >= slots() || first < 0 || first > rows() || end < 0 || end > rows()) Refuse(slot);
  }
  return commands;
}

std::span<const KeepCommand> CacheArguments::Keeps() {
  const auto commands = Entries<KeepCommand>(0, 1);
  for (const KeepCommand& command : commands) {
    if (command.slot < 0 || command.slot >= slots() || command.row < 0 || command.row > rows()) Refuse(command.slot);
    if (command.id >= kMostRowIds) Refuse(static_cast<int32_t>(command.id));
  }
  return commands;
}

std::span<const int32_t> CacheArguments::Ids(std::span<const int32_t> ids) {
  for (const int32_t id : ids)
    if (static_cast<RowId>(id) >= kMostRowIds) Refuse(id);
  return ids;
}

std::span<const PutCommand> CacheArguments::Puts() {
  const auto commands = Entries<PutCommand>(0, 1);
  for (const auto& [slot, from, count, at] : commands) {
    if (slot < 0 || slot >= slots() || from < 0 || count < 0 || at < 0 || count > tokens() - from) Refuse(slot);
  }
  return commands;
}

KeptRun CacheArguments::Kept(size_t at) {
  const auto ids = Entries<int32_t>(at, at + 2);
  const auto from = static_cast<size_t>(Integer(at + 1, 0, static_cast<int64_t>(ids.size())));
  return {static_cast<int32_t>(from), Ids(ids.subspan(from))};
}

CopyCommand CacheArguments::Copy(size_t at, int32_t slot, int32_t row) {
  CopyCommand command = {
      slot, row, SlotOrNone(at), static_cast<RowId>(Integer(at + 1, -1, INT32_MAX)), Tokens(at + 2), std::nullopt};
  if (!IsUndefined(at + 3)) command.stream = Address(at + 3);
  return command;
}

Stretch CacheArguments::Stamped() {
  Stretch stretch;
  stretch.slot = Slot(0);
  const int64_t from = Integer(1, 0, tokens());
  stretch.from = static_cast<uint64_t>(from);
  stretch.tokens = static_cast<uint64_t>(Integer(2, 0, tokens() - from));
  stretch.key = Address(3);
  return stretch;
}

}  // namespace vkv::addon
