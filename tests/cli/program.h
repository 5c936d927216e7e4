// Starts the program as a user does.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace bitloom::test {

using Args = std::vector<std::string>;

Args with(Args args, const Args& more);

// Whether two model files hold the same tensors, bit for bit.
bool same_tensors(const std::filesystem::path& a, const std::filesystem::path& b);

struct Outcome {
  int code = -1;  // exit code; 128 + n after signal n
  std::string out, err;
};

// "NAME=value" that mpirun needs in tests: more ranks than cores, nothing but this machine.
std::vector<std::string> mpi_settings();

// Runs `bitloom args...` in `folder` to its end, with a cache folder of its own in it and one thread, unless `settings`
// ("NAME=value") say otherwise.
Outcome run_program(const std::filesystem::path& folder, const std::vector<std::string>& args,
                    const std::vector<std::string>& settings = {});

// Likewise the program whose GPU the CPU emulates.
Outcome run_on_emulated_gpu(const std::filesystem::path& folder, const std::vector<std::string>& args);

// The same under mpirun with `ranks` ranks on this machine.
Outcome run_ranks(const std::filesystem::path& folder, int ranks, const std::vector<std::string>& args);

// A program that runs beside the test.
class Background {
 public:
  // `ranks` above 0: under mpirun.
  Background(const std::filesystem::path& folder, const std::vector<std::string>& args, int ranks = 0,
             const std::vector<std::string>& settings = {});
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  ~Background();  // kills it if it still runs

  // Waits until its output holds `text`; false if it ends, or a minute passes, before that.
  bool wait_for(const std::string& text);
  void signal(int number) const;
  // The process of a rank.
  pid_t rank(int number) const;
  // mpirun, where the program itself starts one.
  pid_t launcher() const;
  Outcome wait();

 private:
  template <typename F>
  pid_t descendant(F&& wanted) const;

  std::filesystem::path out_, err_;
  pid_t process_ = -1;
};

// Options that train a small net within a second or two: one layer, few images, one epoch.
std::vector<std::string> quick_training(const std::string& out);

}  // namespace bitloom::test
