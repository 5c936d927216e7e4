// Starts the program as a user does.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace bitloom::test {

using Args = std::vector<std::string>;

Args with(Args args, const Args& more);
// Between white space.
Args words_of(const std::string& text);

// Whether two model files hold the same tensors, bit for bit; but for those, if any, with `ignored` in their names.
bool same_tensors(const std::filesystem::path& a, const std::filesystem::path& b, const std::string& ignored = "");

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

// As run_program, with the standard output going to `file`, /dev/full say; Outcome::out stays empty.
Outcome run_program_into(const std::filesystem::path& folder, const std::filesystem::path& file,
                         const std::vector<std::string>& args);

// As run_program, with the standard output on a terminal of `columns` columns.
Outcome run_on_screen(const std::filesystem::path& folder, unsigned short columns, const std::vector<std::string>& args);

// As run_program, for the program whose GPU the CPU emulates.
Outcome run_on_emulated_gpu(const std::filesystem::path& folder, const std::vector<std::string>& args,
                            const std::vector<std::string>& settings = {});

// The same under mpirun with `ranks` ranks on this machine.
Outcome run_ranks(const std::filesystem::path& folder, int ranks, const std::vector<std::string>& args);

// Runs lines of bash in `folder`, with as many threads as there are cores, and what mpirun needs in tests; $BITLOOM is the
// program.
Outcome run_shell(const std::filesystem::path& folder, const std::string& script);

class Hold;

// A program that runs beside the test.
class Background {
 public:
  // `ranks` above 0: under mpirun.
  Background(const std::filesystem::path& folder, const std::vector<std::string>& args, int ranks = 0,
             const std::vector<std::string>& settings = {});
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  ~Background();  // kills it if it still runs

  // Waits until its output holds `text`; false if it ends, or some minutes pass, before that.
  bool wait_for(const std::string& text);
  void signal(int number) const;
  pid_t process() const { return process_; }
  // The process of a rank.
  pid_t rank(int number) const;
  // Waits until a process is no more, if it is only waited for by a parent; false if a minute passes before that.
  bool wait_for_end_of(pid_t process) const;
  // mpirun, where the program itself starts one.
  pid_t launcher() const;
  Outcome wait();
  // Stops a rank (SIGSTOP) of a run that is held, which goes on then, and waits.
  Outcome wait_without(int rank, const Hold& hold);

 private:
  template <typename F>
  pid_t descendant(F&& wanted) const;

  std::filesystem::path out_, err_;
  pid_t process_ = -1;
};

// A file that holds a run back (--hold) before the step after its first `steps`, until the object moves on.
class Hold {
 public:
  Hold(const std::filesystem::path& folder, std::size_t steps);
  void until(std::size_t steps) const;
  void release() const;
  // Option that the run is given.
  static Args option() { return {"--hold", "hold"}; }

 private:
  std::filesystem::path file_;
};

// Waits until `done` says yes, for some minutes at most; whether it did.
bool wait_until(const std::function<bool()>& done);

// Options that train a small net within a second or two: few images, one epoch, whose number of steps follows.
std::vector<std::string> quick_training(const std::string& out);
inline constexpr std::size_t epoch_steps = 8;

}  // namespace bitloom::test
