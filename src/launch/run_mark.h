// How far a supervised run is, as its ProgressFile says.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace bitloom::launch {

struct Mark {
  std::string text;           // the whole file: whatever changes in it is a sign of life
  std::string start;          // the start that wrote it
  std::size_t stage = 0;      // under way
  std::size_t step = 0;       // step of the stage
  std::size_t evaluated = 0;  // images evaluated after that step
  bool has_begun = false;     // says where the start began
  std::size_t began_stage = 0, began_step = 0;

  bool is_beyond(const Mark& other) const;
};

// The mark of the folder's run. A file that is missing, or not as ProgressFile writes it, says nothing of how far the run is.
Mark read_mark(const std::filesystem::path& folder);

}  // namespace bitloom::launch
