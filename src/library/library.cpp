#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/version.h"
#include "layerwise/forward.h"
#include "layerwise/model.h"
#include "library/bitloom.h"
#include "simd/kernels.h"

namespace {

using bitloom::Error;
using bitloom::ErrorKind;
using bitloom::fail;
using bitloom::layerwise::Classifier;
using bitloom::layerwise::ForwardWorkspace;
using bitloom::layerwise::Model;
using bitloom::layerwise::Views;

std::string& last_error() {
  thread_local std::string text;
  return text;
}

int status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage: return BITLOOM_BAD_ARGUMENT;
    case ErrorKind::data: return BITLOOM_BAD_DATA;
    case ErrorKind::io: return BITLOOM_SYSTEM;
    default: return BITLOOM_INTERNAL;
  }
}

int failed(const char* text, int status) noexcept {
  try {
    last_error() = text;
  } catch (const std::bad_alloc&) {
    last_error() = "no memory";  // short enough to need none
  }
  return status;
}

// Calls `f`: what it throws must not reach C.
template <typename F>
int guarded(F&& f) {
  last_error().clear();
  try {
    f();
    return BITLOOM_OK;
  } catch (const Error& error) {
    return failed(error.what(), status_of(error.kind()));
  } catch (const std::bad_alloc&) {
    return failed("no memory", BITLOOM_SYSTEM);
  } catch (const std::exception& error) {
    return failed(error.what(), BITLOOM_INTERNAL);
  } catch (...) {
    return failed("an exception of no known kind", BITLOOM_INTERNAL);
  }
}

template <typename T>
void require(const T* pointer, const char* name) {
  if (pointer == nullptr) fail(ErrorKind::usage, "{}: a null pointer", name);
}

// The memory of threads that are classifying, for the next ones.
class Workspaces {
 public:
  std::unique_ptr<ForwardWorkspace> take(const Classifier& classifier) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<ForwardWorkspace>(classifier.make_workspace());
    std::unique_ptr<ForwardWorkspace> work = std::move(free_.back());
    free_.pop_back();
    return work;
  }
  void give(std::unique_ptr<ForwardWorkspace> work) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(work));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<ForwardWorkspace>> free_;
};

}  // namespace

struct bitloom_net {
  Model model;
  Views views;
  std::optional<Classifier> classifier;  // reads `model`
  mutable Workspaces workspaces;

  explicit bitloom_net(const char* file) : model(Model::load(file)) { choose(model.net.views); }
  void choose(const Views& chosen) {
    classifier.emplace(Classifier::of(bitloom::simd::kernels(), model, model.net.classifier, chosen));
    views = chosen;
  }
};

extern "C" {

const char* bitloom_error(void) { return last_error().c_str(); }

const char* bitloom_version(void) { return bitloom::version; }

int bitloom_load(const char* file, bitloom_net** net) {
  if (net != nullptr) *net = nullptr;
  return guarded([&] {
    require(file, "file");
    require(net, "net");
    *net = std::make_unique<bitloom_net>(file).release();
  });
}

void bitloom_free(bitloom_net* net) { delete net; }

size_t bitloom_height(const bitloom_net* net) { return net == nullptr ? 0 : net->model.encoder.image_shape().height; }
size_t bitloom_width(const bitloom_net* net) { return net == nullptr ? 0 : net->model.encoder.image_shape().width; }
size_t bitloom_colours(const bitloom_net* net) { return net == nullptr ? 0 : net->model.encoder.image_shape().channels; }
size_t bitloom_classes(const bitloom_net* net) { return net == nullptr ? 0 : net->model.class_names.size(); }

const char* bitloom_class_name(const bitloom_net* net, size_t label) {
  return label < bitloom_classes(net) ? net->model.class_names[label].c_str() : nullptr;
}

int bitloom_scores(const bitloom_net* net, const unsigned char* pixels, size_t count, float* scores) {
  return guarded([&] {
    require(net, "net");
    if (count == 0) return;
    require(pixels, "pixels");
    require(scores, "scores");
    const bitloom::data::ImageShape& shape = net->model.encoder.image_shape();
    const std::size_t plane = shape.height * shape.width;
    std::vector<std::uint8_t> planes(shape.size());
    std::vector<float> own;
    std::unique_ptr<ForwardWorkspace> work = net->workspaces.take(*net->classifier);
    for (std::size_t i = 0; i < count; ++i, pixels += planes.size(), scores += own.size()) {
      for (std::size_t k = 0; k < plane; ++k) {
        for (std::size_t c = 0; c < shape.channels; ++c) planes[c * plane + k] = pixels[k * shape.channels + c];
      }
      net->classifier->scores(planes.data(), *work, own);
      std::copy(own.begin(), own.end(), scores);
    }
    net->workspaces.give(std::move(work));
  });
}

int bitloom_set_views(bitloom_net* net, int mirror, size_t shift) {
  return guarded([&] {
    require(net, "net");
    net->choose({mirror != 0, shift, net->views.sure});
  });
}

int bitloom_set_sure(bitloom_net* net, double probability) {
  return guarded([&] {
    require(net, "net");
    if (!(probability > 0 && probability <= 1)) {
      fail(ErrorKind::usage, "probability: {}; expected above 0, at most 1", probability);
    }
    net->choose({net->views.mirror, net->views.shift, probability});
  });
}

}  // extern "C"
