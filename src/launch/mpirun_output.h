// Output of mpirun and of the processes that it starts, and what it says of their end.
#pragma once

#include <string>
#include <vector>

namespace bitloom::launch {

// The end of what a program wrote.
class OutputTail {
 public:
  // Returns the lines that are complete now.
  std::vector<std::string> add(const std::string& text);
  // Whether the text so far ends without the end of a line.
  bool is_inside_line() const { return !partial_.empty(); }
  const std::vector<std::string>& last_lines() const { return last_; }
  const std::string& text() const { return all_; }

 private:
  std::string partial_, all_;
  std::vector<std::string> last_;
};

// Tells mpirun's own words from those of the processes that it starts.
class LauncherTalk {
 public:
  // Whether the next line of the output is mpirun's.
  bool holds(const std::string& line);

 private:
  bool inside_ = false;
};

// The cause of a run's end by mpirun's output, "rank 2 on node7: signal 9 (Killed)", "rank 1: exit code 3" or "host node7 is
// gone"; "" if it says nothing.
std::string cause_of_end(const std::string& output);

}  // namespace bitloom::launch
