/* The mapper, the slots and the earmarks of the page pool: native/mapper.cc, kv_cache*.cc and page_pool.cc with one row a group and
 * one page a row, and the fences of lib/cache/slot-fences.ts. Three processes: the owner's thread, the mapper, the device.
 *
 * Checked: no deadlock; no growth of a slot between Cancel and the next Request; no page taken in the background between Quiesce and
 * the next Request; every page counted once; no earmark without a page; nothing unmapped under queued work, nor read by it when it
 * is not there. A macro makes each of the mutants that the test names.
 */

#define SLOTS 2
#define ROWS  2
#define PAGES 2
#define NONE  255

mtype = { NOTHING, SHRINK, ALIAS, DETACH, QUIESCE };

byte rows[SLOTS];              /* mapped rows */
byte pages[SLOTS * ROWS];      /* page of each mapped row */
byte references[PAGES];        /* slots that map it, and one while it is kept */
byte freePages = PAGES;
byte kept = NONE;              /* the page that is kept under a number */
byte earmarked[SLOTS];          /* pages set aside for the slot */

byte wanted[SLOTS];            /* the mapper's wishes: rows */
byte working = NONE;           /* slot that the mapper works on */
bool isWorkingCancelled = false;
bool isCancelled[SLOTS];       /* by Cancel, until the next Request */
bool isQuiet = false;          /* by Quiesce, until the next Request */

byte queued[SLOTS];            /* rows from the slot's start that queued work uses: its fence */

#define EARMARKED (earmarked[0] + earmarked[1])

inline take(page) {
  page = 0;
  do
  :: references[page] == 0 -> break
  :: else -> page++
  od;
  references[page] = 1;
  freePages--
}

inline give(page) {
  assert(references[page] > 0);
  references[page]--;
  if
  :: references[page] == 0 -> freePages++
  :: else -> skip
  fi
}

inline unmapLast(slot) {
  rows[slot]--;
  assert(queued[slot] <= rows[slot]); /* nothing is unmapped under queued work */
  give(pages[slot * ROWS + rows[slot]]);
  pages[slot * ROWS + rows[slot]] = NONE
}

/* A growth draws on the slot's own earmark, or on what is earmarked for none. */
#define CAN_TAKE(slot) (freePages > 0 && (earmarked[slot] > 0 || freePages > EARMARKED))

inline mapOne(slot) {
  if
  :: earmarked[slot] > 0 -> earmarked[slot]--
  :: else -> skip
  fi;
  take(page);
  pages[slot * ROWS + rows[slot]] = page;
  rows[slot]++
}

inline checkCounts() {
  used = 0;
  page = 0;
  do
  :: page < PAGES -> if :: references[page] > 0 -> used++ :: else -> skip fi; page++
  :: else -> break
  od;
  assert(used + freePages == PAGES);
  assert(EARMARKED <= freePages);
  mapped = (kept != NONE -> 1 : 0) + rows[0] + rows[1];
  page = 0;
  do
  :: page < PAGES -> mapped = mapped - references[page]; page++
  :: else -> break
  od;
  assert(mapped == 0);
  page = 0; used = 0
}

active proctype mapper() {
  byte slot = 0, want = 0, page = 0;
end:
  do
  :: atomic {
       (wanted[0] > 0 || wanted[1] > 0);
       if
       :: wanted[0] > 0 -> slot = 0
       :: wanted[1] > 0 -> slot = 1
       fi;
       want = wanted[slot];
       wanted[slot] = 0;
       working = slot;
       isWorkingCancelled = false
     }
     /* GrowAhead: the owner changes only slots that it has cancelled, so the slot is free or is let go at once. */
     atomic {
       if
       :: rows[slot] < want && CAN_TAKE(slot) ->
          assert(!isQuiet);
          assert(!isCancelled[slot]);
          mapOne(slot)
       :: else -> want = 0 /* done, or the wish is dropped for want of room */
       fi;
       page = 0
     }
     atomic {
       working = NONE;
#ifdef REQUEUES_AFTER_CANCEL
       if
       :: rows[slot] < want && wanted[slot] == 0 -> wanted[slot] = want
       :: else -> skip
       fi;
#else
       if
       :: rows[slot] < want && wanted[slot] == 0 && !isWorkingCancelled -> wanted[slot] = want
       :: else -> skip
       fi;
#endif
       slot = 0; want = 0
     }
  od
}

/* Does queued work, which must find its rows. */
active proctype device() {
end:
  do
  :: atomic { queued[0] > 0 -> assert(queued[0] <= rows[0]); queued[0] = 0 }
  :: atomic { queued[1] > 0 -> assert(queued[1] <= rows[1]); queued[1] = 0 }
  od
}

inline cancel(slot) {
  atomic { wanted[slot] = 0; if :: working == slot -> isWorkingCancelled = true :: else -> skip fi }
#ifndef CANCEL_DOES_NOT_WAIT
  (working != slot);
#endif
  isCancelled[slot] = true
}

inline quiesce() {
  atomic { wanted[0] = 0; wanted[1] = 0; isWorkingCancelled = true }
#ifndef QUIESCE_DOES_NOT_WAIT
  (working == NONE);
#endif
  isQuiet = true
}

#ifdef UNMAP_IGNORES_FENCE
#define HAS_PASSED(slot) true
#else
#define HAS_PASSED(slot) (queued[slot] == 0)
#endif

active proctype owner() {
  byte slot = 0, page = 0, used = 0, mapped = 0;
  mtype operation = NOTHING;
  do
  :: atomic {
       checkCounts();
       if
       :: slot = 0
       :: slot = 1
       fi;
       if
       :: /* Request: what the growth policy wants */
          isQuiet = false; isCancelled[slot] = false; wanted[slot] = ROWS
       :: /* Growth in the foreground: the mapper may hold the slot, and is waited for */
          working != slot -> if :: rows[slot] < ROWS && CAN_TAKE(slot) -> mapOne(slot) :: else -> skip fi
       :: /* Promise, and its end */
          earmarked[slot] == 0 && rows[slot] < ROWS && freePages > EARMARKED -> earmarked[slot] = 1
       :: earmarked[slot] > 0 -> earmarked[slot] = 0
       :: /* A step is queued and committed */
          rows[slot] > 0 && working != slot -> queued[slot] = rows[slot]
       :: /* Keep the first row */
          kept == NONE && rows[slot] > 0 -> kept = pages[slot * ROWS]; references[kept]++
       :: /* Drop it */
          kept != NONE -> give(kept); kept = NONE
       :: HAS_PASSED(slot) && rows[slot] > 0 -> operation = SHRINK
       :: kept != NONE && rows[slot] == 0 -> operation = ALIAS
       :: HAS_PASSED(slot) && rows[slot] > 0 && references[pages[slot * ROWS]] > 1 -> operation = DETACH
       :: operation = QUIESCE
       fi;
       page = 0
     }
     if
     :: operation == NOTHING -> skip
     :: /* Truncate, reclaim, release: the end is unmapped once its fence has passed, and what was earmarked is dropped */
        operation == SHRINK -> cancel(slot); atomic { unmapLast(slot); earmarked[slot] = 0 }
     :: /* What is kept is mapped in an empty slot; a page that was earmarked for it is free again */
        operation == ALIAS ->
        cancel(slot);
        atomic {
          if
          :: rows[slot] == 0 ->
             pages[slot * ROWS] = kept;
#ifndef ALIAS_WITHOUT_REFERENCE
             references[kept]++;
#endif
             rows[slot] = 1;
             earmarked[slot] = 0
          :: else -> skip
          fi
        }
     :: /* The first row, which others need, gets a page of its own: past the fence; the copy is queued on that */
        operation == DETACH ->
        cancel(slot);
        atomic {
          if
          :: freePages > EARMARKED ->
             assert(queued[slot] == 0);
             give(pages[slot * ROWS]);
             take(page);
             pages[slot * ROWS] = page;
             queued[slot] = 1
          :: else -> skip
          fi
        }
     :: /* Before a refusal: quiesce and count; what is free then stays free until this thread takes it */
        operation == QUIESCE ->
        quiesce();
        used = freePages;
        atomic { assert(used == freePages); if :: rows[slot] < ROWS && CAN_TAKE(slot) -> mapOne(slot) :: else -> skip fi }
     fi;
     atomic { operation = NOTHING; slot = 0; page = 0; used = 0 }
  od
}
