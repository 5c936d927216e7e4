#include "train/local/presence.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "mpi/comm.h"

namespace bitloom::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string unlike_any_other() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// Names of hosts and folders may be no UTF-8.
std::string presence_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace

Presence::Presence(fs::path file, fs::path run, double sign_seconds)
    : file_(std::move(file)), run_(std::move(run)), sign_seconds_(sign_seconds), start_(unlike_any_other()) {}

Presence::~Presence() { end_signs(); }

// None if there is no file.
std::optional<Presence::Holder> Presence::read() const {
  Holder holder;
  try {
    holder.text = read_text(file_);
    const Json json = Json::parse(holder.text);
    if (json.contains("next")) holder.next = json["next"].get<std::uint64_t>();
    holder.run = json.value("run", "");
    holder.start = json.value("start", "");
    holder.host = json.value("host", "");
    holder.folder = json.value("folder", "");
    holder.process = json.value("process", std::int64_t{0});
    holder.is_whole = true;
  } catch (const Error&) {
    std::error_code error;
    if (!fs::exists(file_, error) && !error) return std::nullopt;
  } catch (const Json::exception&) {
    return Holder();
  }
  return holder;
}

void Presence::refuse(const Holder& holder) const {
  fail_field(ErrorKind::busy, "worker",
             "'{}' is at work in {} already (host {}, process {}, run folder {}); expected a name that no other run there has",
             file_.stem().string(), file_.parent_path().parent_path().string(), holder.host, holder.process, holder.folder);
}

void Presence::take_run_identity() {
  const fs::path path = run_ / run_identity_name;
  try {
    identity_ = Json::parse(read_text(path)).at("id").get<std::string>();
  } catch (const Error&) {
  } catch (const Json::exception&) {
  }
  if (!identity_.empty()) return;
  identity_ = unlike_any_other();
  write_atomically(path, presence_text({{"id", identity_}}));
}

// By looks that are far enough from one another, not by the time since the first: a file server that hangs counts as one.
bool Presence::has_been_silent(const Holder& holder) {
  if (holder.is_whole) {
    if (!seen_.empty() && seen_ != holder.text) refuse(holder);
    seen_ = holder.text;
  }
  const Clock::time_point now = Clock::now();
  if (!counted_) counted_ = now;
  if (std::chrono::duration<double>(now - *counted_).count() >= sign_seconds_) {
    counted_ = now;
    ++missing_;
  }
  return missing_ >= missing_signs;
}

bool Presence::take() {
  if (run_.empty() || thread_.joinable()) return true;
  if (identity_.empty()) take_run_identity();
  const std::optional<Holder> holder = read();
  const bool is_other = holder && (!holder->is_whole || (!holder->run.empty() && holder->run != identity_));
  if (is_other && !has_been_silent(*holder)) return false;
  // A process of this run before, for which others wait perhaps.
  if (holder && !is_other) next_ = holder->next;
  write();
  is_ending_ = false;
  thread_ = std::thread([this] { give_signs(); });
  return true;
}

void Presence::write() {
  Json json = Json::object();
  if (next_) json["next"] = *next_;
  if (!run_.empty()) {
    json.update({{"run", identity_},
                 {"start", start_},
                 {"signs", signs_++},
                 {"host", mpi::host_name()},
                 {"process", ::getpid()},
                 {"folder", fs::absolute(run_).lexically_normal().string()}});
  }
  write_atomically(file_, presence_text(json));
}

// Where two have taken it at once, or one has been silent for long, it is the one's who was last.
void Presence::write_unless_taken() {
  if (!run_.empty() && !taken_by_) {
    std::optional<Holder> holder = read();
    if (holder && !holder->start.empty() && holder->start != start_) taken_by_ = std::move(holder);
  }
  if (taken_by_) refuse(*taken_by_);
  write();
}

void Presence::give_signs() {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, std::chrono::duration<double>(sign_seconds_), [this] { return is_ending_; })) {
    try {
      write_unless_taken();
    } catch (const std::exception&) {  // a disk that is full just now; the worker itself finds out who has its name
      if (taken_by_) return;
    }
  }
}

void Presence::end_signs() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ends_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Presence::show(std::uint64_t next) {
  const std::lock_guard lock(mutex_);
  next_ = next;
  write_unless_taken();
}

void Presence::leave() {
  end_signs();
  if (!run_.empty()) {
    const std::optional<Holder> holder = read();
    if (!holder || holder->start != start_) return;
  }
  std::error_code error;
  fs::remove(file_, error);
}

void Presence::require() const {
  const std::lock_guard lock(mutex_);
  if (taken_by_) refuse(*taken_by_);
}

}  // namespace bitloom::train
