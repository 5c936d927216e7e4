// Where the learning layers of a stage get an image from: augmented, encoded and run through the frozen layers, or taken from a
// file of records that were made in this way before. Both give the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/hash.h"
#include "core/random.h"
#include "data/augment.h"
#include "data/dataset.h"
#include "layerwise/forward.h"
#include "layerwise/frozen.h"
#include "layerwise/phase_times.h"
#include "layerwise/record_file.h"

namespace bitloom::layerwise {

struct InputOptions {
  std::uint64_t seed;
  data::Augment augment;
  std::size_t copies;  // fixed augmented copies of each image; 0: a fresh one at every epoch
};

class StageInputs {
 public:
  // Memory of one thread for the image it works on. The maps of layers that learn are put into work.maps by the caller.
  struct Workspace {
    ForwardWorkspace work;
    std::vector<std::uint8_t> stored;   // the image, where it is not in memory
    std::vector<std::uint8_t> image;    // augmented
    std::vector<std::uint64_t> record;  // record of the image; used while there is a record file
  };

  // `trained` are indices of the layers that learn, `id` is the stage's. What is passed by reference outlives this object.
  StageInputs(const simd::Kernels& kernels, const Encoder& encoder, const std::vector<BinaryLayer>& layers,
              const std::vector<std::size_t>& trained, const data::Dataset& train, const InputOptions& options,
              std::uint64_t id);

  Workspace make_workspace() const;
  // Prepares the frozen maps of a training image as it is in `epoch`. Adds to data, encode and prefix.
  void load(std::size_t image, std::size_t epoch, Workspace& space, PhaseTimes& times) const;
  // By how much the augmentation of that epoch moves it.
  data::Shift shift_of(std::size_t image, std::size_t epoch) const;
  // Asks for an image that will be loaded soon. Nothing where records have what it gives.
  void prefetch(std::size_t image) const {
    if (file_ == nullptr) train_.prefetch(image);
  }
  // The input of layer i (geometry().input) for the loaded image.
  void gather(std::size_t i, const Workspace& space, std::uint64_t* target) const;
  // The part of it that is not frozen; the rest of `target` stays.
  void gather_trained(std::size_t i, const Workspace& space, std::uint64_t* target) const;
  // Whether layer i reads frozen maps only.
  bool all_frozen(std::size_t i) const { return frozen_.covers(i); }

  // How many different forms of each image there are: augmented copies, 1 without augmentation, 0 if every epoch has its own.
  std::size_t copies() const;
  // Number of records: copies() times the training images; and the words of each.
  std::uint64_t records() const { return copies() * train_.size(); }
  std::uint64_t record_words() const { return frozen_.words(); }
  // Where that of an image in an epoch stands.
  std::uint64_t record_of(std::size_t image, std::size_t epoch) const { return copy_of(image, epoch) * train_.size() + image; }
  // Their name, given the hash of the training set: everything that they depend on.
  Hash128 records_hash(const std::string& data_hash) const;
  // Takes records from `file` from now on, and puts there what is missing. Null: computes always.
  void use(std::unique_ptr<RecordFile> file) { file_ = std::move(file); }
  RecordFile* file() const { return file_.get(); }
  // Measures, with one thread, how long the first records of `probe` take to compute, write and read. `from_device`: reads are
  // not to come from memory. Fills in the seconds of the result. Throws Error(io) if the probe does not give back what was
  // written.
  FrozenCosts measure(RecordFile& probe, bool from_device) const;

 private:
  std::size_t copy_of(std::size_t image, std::size_t epoch) const;
  std::uint64_t form_of(std::size_t image, std::size_t epoch) const;
  Random random_of(std::size_t image, std::uint64_t form) const;
  void compute(std::size_t image, std::size_t epoch, Workspace& space, PhaseTimes& times) const;

  const Encoder& encoder_;
  const std::vector<BinaryLayer>& layers_;
  const data::Dataset& train_;
  InputOptions options_;
  std::uint64_t id_;
  NetForward forward_;
  FrozenInputs frozen_;
  std::vector<bool> prefix_;  // frozen layers that must run
  std::unique_ptr<RecordFile> file_;
};

}  // namespace bitloom::layerwise
