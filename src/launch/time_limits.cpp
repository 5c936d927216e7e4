#include "launch/time_limits.h"

#include <algorithm>

namespace bitloom::launch {
namespace {

constexpr double startup_seconds = 60;  // time that processes have on top of the deadline until they are at work
constexpr double drain_limit = 30;      // seconds without a sign of life in which those that are not at work yet have to end
constexpr double longest_drain = 600;   // seconds with such signs in which all have to end

}  // namespace

double longest_silence(bool is_at_work, double deadline) { return deadline + (is_at_work ? 0 : startup_seconds); }

bool is_overdue(const Waited& waited, double deadline) {
  if (waited.silent > longest_silence(waited.is_at_work, deadline)) return true;
  if (!waited.asked) return false;
  // A step that is under way, or a checkpoint on its way over a slow link, may be silent for as long as ever, or its steps
  // would be lost.
  if (*waited.asked > std::max(longest_drain, deadline)) return true;
  // Those that are not at work yet have nothing to save.
  return !waited.is_at_work && std::min(*waited.asked, waited.silent) > drain_limit;
}

}  // namespace bitloom::launch
