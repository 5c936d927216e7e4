// Properties of the machine, as far as the program chooses by them or shows them.
#pragma once

#include <cstdint>
#include <string>

#include "mpi/comm.h"

namespace bitloom::cli {

struct Threads {
  int per_rank = 1;        // threads that this rank uses
  int on_host = 1;         // threads of all ranks on this host
  int cores_of_host = 1;   // cores that the ranks on this host may use
  bool from_user = false;  // OMP_NUM_THREADS decided
};

// Collective: sets OpenMP's threads. OMP_NUM_THREADS decides where it is set; otherwise each rank takes its share of the cores
// it may run on, each core divided by the number of ranks on this host that may run there too.
Threads choose_threads(mpi::Comm& comm);

// "" or a warning that the threads are more than the cores.
std::string oversubscription(const Threads& threads);

// The number of this process among those that mpirun or srun started on this host; 0 if neither did.
int local_rank();

std::string cpu_model();  // "unknown" where /proc/cpuinfo does not say

}  // namespace bitloom::cli
