# shellcheck shell=bash
# Functions that the scripts of this folder share; sourced by them. Ends up in the repository's root.
set -euo pipefail
# Folder that relative paths among arguments begin at.
started_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# A heading with the time since the script began.
heading() { printf '\n== [%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# Where ccache is there: builds in other folders find what this one compiled.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros

# as_given PATH: from where the script was started.
as_given() {
  if [[ $1 == /* ]]; then echo "$1"; else echo "$started_in/$1"; fi
}

# use_prebuilt DIR: programs come from an unpacked archive of scripts/pack-gpu, in $programs. What tests read of the repository
# is there too.
use_prebuilt() {
  local folder
  folder=$(as_given "$1")
  [[ -x $folder/bin/bitloom ]] || die "--prebuilt: $1; expected the folder of an unpacked archive of scripts/pack-gpu"
  programs=$(cd "$folder/bin" && pwd)
  export BITLOOM_SOURCE=${programs%/bin}
  # Once, not by every program.
  if [[ -z ${BITLOOM_CUDA_LIBRARIES+set} ]]; then
    local needed
    mapfile -t needed <"$folder/lib/of-cuda"
    BITLOOM_CUDA_LIBRARIES=$(scripts/find-cuda "${needed[@]}") || exit
    export BITLOOM_CUDA_LIBRARIES
  fi
}

# find_cifar10 [FOLDER]: that folder or, without it, where the images of CIFAR-10 usually are.
find_cifar10() {
  local candidate
  if [[ -n ${1-} ]]; then
    as_given "$1"
    return
  fi
  for candidate in "${BITLOOM_DATA-}/cifar-10-batches-bin" data/cifar-10-batches-bin; do
    if [[ -e $candidate/data_batch_1.bin ]]; then
      echo "$candidate"
      return
    fi
  done
  die "no CIFAR-10 found: name it with --data, or run scripts/get-cifar10"
}

# find_shakespeare [FILE]: that file or, without it, where the text of Tiny Shakespeare usually is.
find_shakespeare() {
  local candidate
  if [[ -n ${1-} ]]; then
    as_given "$1"
    return
  fi
  for candidate in "${BITLOOM_DATA-}/text/tinyshakespeare.txt" data/tinyshakespeare.txt; do
    if [[ -e $candidate ]]; then
      echo "$candidate"
      return
    fi
  done
  die "no text found: name it with --data (Tiny Shakespeare is in github.com/karpathy/char-rnn)"
}

# unused_folder NAME: that name, or with -2, -3, ... after it the first that nothing has.
unused_folder() {
  local folder=$1 number
  for ((number = 2; ; ++number)); do
    [[ -e $folder ]] || break
    folder=$1-$number
  done
  echo "$folder"
}

in_ci() { [[ -n ${CI-} ]]; }

# Whether this machine has the driver of an NVIDIA GPU.
has_gpu() { [[ -e /proc/driver/nvidia/version || -e /dev/nvidiactl ]]; }

# Whether the compiler is that of continuous integration, whose warnings are errors everywhere: others warn of other things.
has_known_compiler() { [[ -z ${CXX-} && $(c++ -dumpversion 2>/dev/null) == 12* ]]; }

# configure PRESET [-D...]: runs CMake; warnings are errors in continuous integration and with its compiler.
configure() {
  local preset=$1
  shift
  local log=build/$preset-configure.log
  mkdir -p build
  # Kernels for GPUs take minutes to compile: only where there is one to run them, or where the preset wants them.
  if [[ $preset == release ]] && ! has_gpu; then set -- -DBITLOOM_CUDA=OFF "$@"; fi
  if in_ci || has_known_compiler; then set -- -DBITLOOM_WERROR=ON "$@"; fi
  if ! cmake --preset "$preset" "$@" >"$log" 2>&1; then
    cat "$log" >&2
    die "CMake failed, see above"
  fi
}

# build PRESET [TARGET...]: builds with one line of progress; the compiler's output goes to build/PRESET-build.log and is shown
# if the build fails.
# shellcheck disable=SC2016  # awk's dollars
build() {
  local preset=$1 log=build/$1-build.log
  shift
  local targets=()
  if (($# > 0)); then targets=(--target "$@"); fi
  echo "Building into build/$preset (log: $log)"
  local show='{ print > file }'
  # A terminal shows the numbers of "[12/80] Building CXX object ...", in place.
  if [[ -t 1 ]]; then show+=' /^\[[0-9]+\/[0-9]+\]/ { printf "\r  %s steps ", substr($1, 2, length($1) - 2); fflush() }'; fi
  if ! cmake --build "build/$preset" --parallel "$(nproc)" "${targets[@]}" 2>&1 | awk -v file="$log" "$show"; then
    echo
    sed -n '/^FAILED/,$p' "$log" | head -n 60 >&2
    die "the build failed; its first errors are above, all of its output is in $log"
  fi
  if [[ -t 1 ]]; then printf '\r\033[K'; fi
}

# [python_in=FOLDER] install_python PACKAGE...: into the virtual environment build/venv or FOLDER, made if need be. False, after
# showing pip's last lines, if pip cannot. Byte code is not compiled: for PyTorch that takes longer than what is run with it.
install_python() {
  local venv=${python_in:-build/venv}
  local log=$venv-install.log
  mkdir -p build
  # One that is half made, for want of python3-venv say, has no pip.
  [[ -x $venv/bin/pip ]] || python3 -m venv --clear "$venv" || return 1
  "$venv/bin/pip" install --disable-pip-version-check --no-compile --quiet "$@" >"$log" 2>&1 && return
  tail -n 5 "$log" >&2
  return 1
}

# Settings of mpirun on one machine, whatever it is: more ranks than it counts slots, cores left to OpenMP, and, only where the
# user is root (a container), its consent to that.
export_mpi_environment() {
  export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
  export OMPI_MCA_pml=ob1 OMPI_MCA_btl=vader,tcp,self OMPI_MCA_btl_vader_single_copy_mechanism=none
  export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
  if (($(id -u) == 0)); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
}

# repeat_failures FOLDER SECONDS: the last lines that failed tests printed, by ctest's files in this folder that are no older than
# that moment. They stand at the end then, and of a long log often nothing else is kept.
repeat_failures() {
  local name
  [[ -e $1/LastTestsFailed.log ]] && (($(stat -c %Y "$1/LastTestsFailed.log") >= $2)) || return 0
  while IFS=: read -r _ name; do
    printf '\n== %s\n' "$name"
    awk -v name="$name" '/^[0-9]+\/[0-9]+ Test: / { shown = substr($0, index($0, ": ") + 2) == name }
                         $0 == "<end of output>" { shown = 0 }
                         shown' "$1/LastTest.log" | tail -n 40
  done <"$1/LastTestsFailed.log"
}

# run_tests PRESET [arguments of ctest...]: fails if a test fails, if there is none, or, in continuous integration, if one was
# skipped.
run_tests() {
  local preset=$1 log=build/$1-test.log
  shift
  local start
  start=$(date +%s)
  # One more than there are cores: many tests wait for processes.
  if ! ctest --preset "$preset" --parallel $(($(nproc) + 1)) --no-tests=error "$@" 2>&1 | tee "$log" |
    { grep --line-buffered -vE '^ +Start +[0-9]+:' || true; }; then
    repeat_failures "build/$preset/Testing/Temporary" "$start"
    return 1
  fi
  if in_ci && grep -qE '\*\*\*(Skipped|Not Run)' "$log"; then
    die "a test was skipped (see above), which counts as a failure where CI is set"
  fi
}
