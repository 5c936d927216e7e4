// An Ethernet switch between TAP devices whose links have a rate and a delay, for tests of several hosts on one machine:
// Linux's netem is not in every kernel.
//
//   switch RATE DELAY TAP...   RATE in Mbit/s per link and direction, 0: unlimited; DELAY in ms from host to host, one way
//
// Makes the devices, prints "ready" and forwards until it is killed. Whoever starts it puts the devices into namespaces.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <queue>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Address = std::array<unsigned char, 6>;
using Seconds = std::chrono::duration<double>;

constexpr double longest_queue = 0.5;  // seconds of traffic that a link holds; what comes on top is lost, as TCP expects

struct Port {
  int device = -1;
  Time up_free, down_free;  // when the link can take the next frame
};

struct Frame {
  Time due;
  unsigned long number = 0;  // frames that are due at once keep their order
  std::size_t port = 0;
  bool arrived = false;  // at the switch; then it waits for the link down
  std::vector<unsigned char> bytes;

  bool operator<(const Frame& other) const { return due != other.due ? due > other.due : number > other.number; }
};

int open_tap(const char* name) {
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) {
    std::fprintf(stderr, "switch: %s: %s\n", name, std::strerror(errno));
    std::exit(1);
  }
  return device;
}

class Switch {
 public:
  Switch(double megabits, double milliseconds, std::vector<Port> ports)
      : seconds_per_byte_(megabits > 0 ? 8e-6 / megabits : 0), delay_(1e-3 * milliseconds), ports_(std::move(ports)) {}

  [[noreturn]] void run() {
    std::vector<pollfd> polled;
    for (const Port& port : ports_) polled.push_back({port.device, POLLIN, 0});
    while (true) {
      timespec wait = {1, 0};
      if (!frames_.empty()) {
        const auto left = std::max<long>(0, std::chrono::nanoseconds(frames_.top().due - Clock::now()).count());
        wait = {left / 1000000000, left % 1000000000};
      }
      ppoll(polled.data(), polled.size(), &wait, nullptr);
      for (std::size_t p = 0; p < ports_.size(); ++p) {
        if ((polled[p].revents & POLLIN) != 0) receive(p);
      }
      while (!frames_.empty() && frames_.top().due <= Clock::now()) forward();
    }
  }

 private:
  // When the last bit of a frame has passed a link that is free at `free`; false if the link's queue is full.
  bool pass(Time now, Time& free, std::size_t bytes) const {
    const Time start = std::max(now, free);
    if (Seconds(start - now).count() > longest_queue) return false;
    free = start + std::chrono::duration_cast<Clock::duration>(Seconds(seconds_per_byte_ * static_cast<double>(bytes)));
    return true;
  }

  void receive(std::size_t p) {
    std::array<unsigned char, 65536> buffer;
    for (int burst = 0; burst < 64; ++burst) {
      const ssize_t count = read(ports_[p].device, buffer.data(), buffer.size());
      if (count < 14) return;
      const auto size = static_cast<std::size_t>(count);
      Address source;
      std::memcpy(source.data(), buffer.data() + 6, source.size());
      known_[source] = p;
      if (!pass(Clock::now(), ports_[p].up_free, size)) continue;
      const Time due = ports_[p].up_free + std::chrono::duration_cast<Clock::duration>(Seconds(delay_));
      frames_.push({due, ++number_, p, false, {buffer.begin(), buffer.begin() + count}});
    }
  }

  void forward() {
    Frame frame = frames_.top();
    frames_.pop();
    if (frame.arrived) {
      // A device that is down, or full, loses frames as a wire would.
      if (write(ports_[frame.port].device, frame.bytes.data(), frame.bytes.size()) < 0) return;
      return;
    }
    Address target;
    std::memcpy(target.data(), frame.bytes.data(), target.size());
    const auto known = known_.find(target);
    for (std::size_t p = 0; p < ports_.size(); ++p) {
      if (p == frame.port || (known != known_.end() && known->second != p)) continue;
      if (!pass(frame.due, ports_[p].down_free, frame.bytes.size())) continue;
      frames_.push({ports_[p].down_free, ++number_, p, true, frame.bytes});
    }
  }

  double seconds_per_byte_, delay_;
  std::vector<Port> ports_;
  std::map<Address, std::size_t> known_;
  std::priority_queue<Frame> frames_;
  unsigned long number_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: switch MBIT_PER_S DELAY_MS TAP...\n");
    return 2;
  }
  std::vector<Port> ports;
  for (int i = 3; i < argc; ++i) ports.push_back({open_tap(argv[i]), {}, {}});
  std::puts("ready");
  std::fflush(stdout);
  Switch(std::atof(argv[1]), std::atof(argv[2]), std::move(ports)).run();
}
