// bitloom info: version, kernels, GPUs, processor, threads, memory, cache.
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/version.h"
#include "nn/measure.h"
#include "simd/kernels.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

constexpr double measured_seconds = 0.3;  // per kernel table

std::string cache_text() {
  try {
    const fs::path folder = user_cache_folder();
    std::uint64_t bytes = 0;
    std::error_code error;
    for (auto entry = fs::recursive_directory_iterator(folder, error); !error && entry != fs::recursive_directory_iterator();
         entry.increment(error)) {
      std::error_code vanished;  // other processes may remove files meanwhile
      const std::uint64_t size = entry->is_regular_file(vanished) ? entry->file_size(vanished) : 0;
      if (!vanished) bytes += size;
    }
    return fmt::format("{} ({})", folder.string(), bytes == 0 ? "empty" : format_bytes(bytes));
  } catch (const Error& error) {
    return fmt::format("none: {}", error.what());
  }
}

std::string kernel_text() {
  const char* forced = std::getenv("BITLOOM_ISA");
  const bool is_forced = forced != nullptr && *forced != '\0';
  try {
    return fmt::format("{} ({})", simd::kernels().name,
                       is_forced ? "forced by BITLOOM_ISA" : "the best that this CPU supports");
  } catch (const Error& error) {  // BITLOOM_ISA may name a set of the float engine's kernels
    return fmt::format("none: {}", error.what());
  }
}

// Bit-MACs per second of all threads of this process together.
double peak_of_all_cores() {
  double sum = 0;
#pragma omp parallel reduction(+ : sum)
  sum += simd::measure_peak(simd::kernels(), measured_seconds);
  return sum;
}

void measure(Session& session, const Threads& threads) {
  Terminal& terminal = session.terminal;
  terminal.print("\nxor + popcount + add, peak in 10^12 bit-MAC/s (one weight bit meets one input bit):");
  for (const std::string& name : simd::supported_kernels()) {
    terminal.print("  {:<20}{:>8.3f} on one core", name, 1e-12 * simd::measure_peak(simd::kernels(name), measured_seconds));
  }
  terminal.print("  {:<20}{:>8.3f} on {} threads", simd::kernels().name, 1e-12 * peak_of_all_cores(), threads.per_rank);
}

// Peak rates for float models: `train gpt` gives its speed as a share of these.
void measure_floats(Terminal& terminal, nn::Device device) {
  constexpr double seconds = 0.5;
  nn::Engine engine(device);
  terminal.print("\nproducts of matrices, backend {}, {}:", engine.backend_name(),
                 device.kind == nn::Device::Kind::cpu ? "all threads" : nn::name_of(device));
  for (const DType values : {DType::f32, DType::bf16, DType::f16}) {
    if (!engine.supports(values)) continue;
    terminal.print("  {:<20}{:>8.0f} GFLOP/s", nn::to_text(values), 1e-9 * nn::measure_matmul(engine, values, seconds));
  }
  terminal.print("copying memory        {:>8.1f} GB/s read and written", 1e-9 * nn::measure_copy(engine, seconds));
}

void print_gpus(Terminal& terminal, const std::vector<nn::Gpu>& gpus) {
  if (gpus.empty()) return terminal.print("GPUs             none: {}", nn::gpu_problem(0));
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const nn::Gpu& gpu = gpus[i];
    const std::string problem = nn::gpu_problem(static_cast<int>(i));
    terminal.print("{:<17}cuda:{}: {}, {} of {} free, compute capability {}.{}, {} multiprocessors{}{}", i == 0 ? "GPUs" : "",
                   i, gpu.name, format_bytes(gpu.free_memory), format_bytes(gpu.memory), gpu.major, gpu.minor,
                   gpu.multiprocessors, problem.empty() ? "" : "; cannot be used: ", problem);
  }
}

}  // namespace

int info(Session& session, std::span<const std::string> args) {
  bool measures = false;
  Options options("bitloom info [--measure]", "Shows what this machine offers and what Bitloom makes of it.");
  options.flag("measure", measures,
               "Measurement of peak rates, which takes seconds: binary multiply-adds of each kernel table, products of "
               "matrices, copies");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  const Threads threads = choose_threads(session.comm);
  session.on_root([&] {
    Terminal& terminal = session.terminal;
    terminal.print("bitloom {}", version);
    terminal.print("kernels in use   {}", kernel_text());
    terminal.print("  supported      {}", fmt::join(simd::supported_kernels(), ", "));
    terminal.print("  compiled in    {}", fmt::join(simd::compiled_kernels(), ", "));
    terminal.print("float backends   {}", fmt::join(nn::backends(), ", "));
    terminal.print("  kernels        {}", fmt::join(nn::cpu_kernels(), ", "));
    const std::vector<nn::Gpu> gpus = nn::gpus();
    print_gpus(terminal, gpus);
    terminal.print("processor        {}", cpu_model());
    terminal.print("threads          {} per process ({}), {} on {} core{} of this host", threads.per_rank,
                   threads.from_user ? "OMP_NUM_THREADS" : "its share of the cores", threads.on_host, threads.cores_of_host,
                   threads.cores_of_host == 1 ? "" : "s");
    terminal.print(
        "MPI              {}; standard {}, {}",
        mpi::launched_by_mpi() ? fmt::format("rank 0 of {}", session.comm.size()) : "not in use: started without mpirun",
        BITLOOM_MPI_VERSION, BITLOOM_MPI_LIBRARY);
    terminal.print("memory           {} of {} available", format_bytes(available_memory()), format_bytes(total_memory()));
    terminal.print("cache            {}", cache_text());
    if (const std::string warning = oversubscription(threads); !warning.empty()) terminal.print("warning: {}", warning);
    if (measures) {
      measure(session, threads);
      measure_floats(terminal, {});
      for (int i = 0; i < static_cast<int>(gpus.size()); ++i) measure_floats(terminal, {nn::Device::Kind::cuda, i});
    }
  });
  return exit_done;
}

}  // namespace bitloom::cli
