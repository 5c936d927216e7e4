#include "train/update_rule.h"

#include <cmath>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/hash.h"
#include "core/random.h"
#include "core/suggest.h"
#include "nn/ops.h"
#include "train/moments.h"
#include "train/muon.h"
#include "train/optimizer.h"

namespace bitloom::train {
namespace {

// Keys under which new values and moments of 16 bits are rounded. Throws Error(usage) for a parameter that the rule cannot
// move.
std::vector<std::uint64_t> make_rounding_keys(std::span<nn::Parameter* const> parameters, std::uint64_t seed,
                                              const char* rule) {
  std::vector<std::uint64_t> keys;
  for (const nn::Parameter* parameter : parameters) {
    const std::uint64_t name = hash_bytes(std::as_bytes(std::span(parameter->name))).low;
    keys.push_back(Random(seed, Stream::weight_rounding, name).next());
    require_usual_rate(*parameter, rule);
  }
  return keys;
}

nn::AdamWTensors tensors_of(const nn::Parameter& parameter, const nn::Tensor& mean, const nn::Tensor& variance,
                            std::uint64_t rounding_key) {
  nn::AdamWTensors tensors{parameter.value, parameter.gradient, mean, variance, {}, parameter.decays,
                           rounding_key,    parameter.numbers()};
  if (parameter.copy.dtype() != parameter.value.dtype()) tensors.copy = parameter.copy;
  return tensors;
}

// Loshchilov, Hutter 2019, algorithm 2.
class AdamW final : public UpdateRule {
 public:
  AdamW(nn::Engine& engine, std::span<nn::Parameter* const> parameters, const OptimizerOptions& options, std::uint64_t seed)
      : engine_(engine),
        parameters_(parameters.begin(), parameters.end()),
        options_(options),
        means_(engine, parameters, "mean", narrow(options, DType::f1_6_9)),
        variances_(engine, parameters, "variance", narrow(options, DType::f0_6_10)),
        rounding_keys_(make_rounding_keys(parameters, seed, "adamw")) {
    for (const nn::Parameter* parameter : parameters) {
      if (options.narrow_moments && parameter->gradient.dtype() != DType::f32) {
        fail_field(ErrorKind::usage, "optimizer_state", "16-bit with `dtype` {}; expected `dtype` f32, bf16 or f16",
                   nn::to_text(parameter->gradient.dtype()));
      }
    }
  }

  void move(std::span<const std::size_t> which, const Step& step) override {
    std::vector<nn::AdamWTensors> tensors;
    for (const std::size_t i : which) {
      tensors.push_back(tensors_of(*parameters_[i], means_[i], variances_[i], rounding_keys_[i]));
    }
    nn::AdamWStep all;
    all.rate = step.rate;
    all.beta1 = options_.beta1;
    all.beta2 = options_.beta2;
    all.epsilon = options_.epsilon;
    all.decay = options_.decay;
    all.gradient_scale = step.scale;
    all.variance_limit = options_.variance_limit;
    all.step = step.count;
    nn::adamw(engine_, tensors, all);
  }

  void add_state(std::vector<StateTensor>& all) override {
    means_.add_state(all);
    variances_.add_state(all);
  }

 private:
  static std::optional<DType> narrow(const OptimizerOptions& options, DType type) {
    return options.narrow_moments ? std::optional(type) : std::nullopt;
  }

  nn::Engine& engine_;
  std::vector<nn::Parameter*> parameters_;
  OptimizerOptions options_;
  Moments means_, variances_;
  std::vector<std::uint64_t> rounding_keys_;
};

// The mean of squares v = beta2 v + (1 - beta2) g^2 and value -= rate (g / (sqrt(v) + epsilon) + decay value): Tieleman, Hinton
// 2012, lecture 6.5, slide 29, with the epsilon where PyTorch has it and the weight decay of AdamW. v begins at 0 and is not
// corrected for that. A value, its gradient and v in f32 are the 12 bytes per parameter of Huang et al. 2019, table 1.
class RmsProp final : public UpdateRule {
 public:
  RmsProp(nn::Engine& engine, std::span<nn::Parameter* const> parameters, const OptimizerOptions& options, std::uint64_t seed)
      : engine_(engine),
        parameters_(parameters.begin(), parameters.end()),
        options_(options),
        squares_(engine, parameters, "square"),
        rounding_keys_(make_rounding_keys(parameters, seed, "rmsprop")) {}

  void move(std::span<const std::size_t> which, const Step& step) override {
    std::vector<nn::AdamWTensors> tensors;
    for (const std::size_t i : which) {
      const nn::Parameter& parameter = *parameters_[i];
      tensors.push_back(tensors_of(parameter, parameter.gradient, squares_[i], rounding_keys_[i]));
    }
    // AdamW without a mean, whose correction c = 1 / (1 - beta2^count) of the mean of squares is taken back:
    // rate g / (sqrt(v) + epsilon) = rate sqrt(c) g / (sqrt(c v) + sqrt(c) epsilon).
    const double root = 1 / std::sqrt(1 - std::pow(options_.beta2, static_cast<double>(step.count)));
    nn::AdamWStep all;
    all.rate = step.rate * root;
    all.beta1 = 0;
    all.beta2 = options_.beta2;
    all.epsilon = options_.epsilon * root;
    all.decay = options_.decay / root;
    all.gradient_scale = step.scale;
    all.variance_limit = options_.variance_limit;
    all.step = step.count;
    nn::adamw(engine_, tensors, all);
  }

  void add_state(std::vector<StateTensor>& all) override { squares_.add_state(all); }

 private:
  nn::Engine& engine_;
  std::vector<nn::Parameter*> parameters_;
  OptimizerOptions options_;
  Moments squares_;
  std::vector<std::uint64_t> rounding_keys_;
};

// With momentum m, Nesterov's (Sutskever et al. 2013, section 2): g' = g + (decay / peak rate) value; v = m v + g';
// value -= rate (g' + m v). The decay of a step at the peak rate is `decay` of the value whatever that rate is, and momentum
// adds it up to decay / (1 - m), as in PyTorch's SGD with its weight_decay divided by the rate. A parameter's own factor on the
// rate leaves its decay alone.
class Sgd final : public UpdateRule {
 public:
  Sgd(nn::Engine& engine, std::span<nn::Parameter* const> parameters, const OptimizerOptions& options)
      : engine_(engine),
        parameters_(parameters.begin(), parameters.end()),
        momentum_(options.momentum),
        decay_(options.decay),
        velocities_(engine, parameters, "velocity") {
    for (const nn::Parameter* parameter : parameters_) {
      if (parameter->value.dtype() == DType::bf16) {
        fail_field(ErrorKind::usage, "master_weights", "none; expected f32 with `optimizer` sgd");
      }
    }
  }

  void move(std::span<const std::size_t> which, const Step& step) override {
    std::vector<nn::Parameter*> moved;
    for (const std::size_t i : which) {
      nn::Parameter& parameter = *parameters_[i];
      nn::Tensor& velocity = velocities_[i];
      const double rate = step.rate * parameter.rate;
      // rate times decay per peak rate: what is subtracted of a value per step.
      const double shrink = parameter.decays ? decay_ * step.share : 0;
      const double per_rate = rate > 0 ? shrink / rate : 0;
      nn::scale_add(engine_, step.scale, parameter.gradient, momentum_, velocity);
      if (per_rate != 0) nn::scale_add(engine_, per_rate, parameter.value, 1, velocity);
      nn::scale_add(engine_, -rate * step.scale, parameter.gradient, 1 - shrink, parameter.value);
      nn::scale_add(engine_, -rate * momentum_, velocity, 1, parameter.value);
      moved.push_back(&parameter);
    }
    nn::refresh_copies(engine_, moved);
  }

  void add_state(std::vector<StateTensor>& all) override { velocities_.add_state(all); }

 private:
  nn::Engine& engine_;
  std::vector<nn::Parameter*> parameters_;
  double momentum_, decay_;
  Moments velocities_;
};

constexpr NamedUpdateRule update_rules[] = {
    {"adamw", 2, 2,
     [](nn::Engine& engine, std::span<nn::Parameter* const> parameters, const OptimizerOptions& options, std::uint64_t seed)
         -> std::unique_ptr<UpdateRule> { return std::make_unique<AdamW>(engine, parameters, options, seed); }},
    {"muon", 2, 1, make_muon},
    {"rmsprop", 1, 1,
     [](nn::Engine& engine, std::span<nn::Parameter* const> parameters, const OptimizerOptions& options, std::uint64_t seed)
         -> std::unique_ptr<UpdateRule> { return std::make_unique<RmsProp>(engine, parameters, options, seed); }},
    {"sgd", 1, 1,
     [](nn::Engine& engine, std::span<nn::Parameter* const> parameters, const OptimizerOptions& options,
        std::uint64_t /*seed*/) -> std::unique_ptr<UpdateRule> { return std::make_unique<Sgd>(engine, parameters, options); }},
};

}  // namespace

void require_usual_rate(const nn::Parameter& parameter, std::string_view rule) {
  if (parameter.rate == 1) return;
  fail_field(ErrorKind::usage, "optimizer", "{}; '{}' has a learning rate of its own; expected sgd", rule, parameter.name);
}

std::vector<std::string> update_rule_names() { return names_of(update_rules); }

const NamedUpdateRule& find_update_rule(std::string_view name) {
  return find_named(update_rules, name, marked_field("optimizer"));
}

std::size_t moment_bytes(const OptimizerOptions& options, bool is_block_matrix, std::size_t gradient_bytes) {
  const bool is_narrow = options.narrow_moments && is_block_matrix;
  const NamedUpdateRule& rule = find_update_rule(options.rule);
  const std::size_t moments = is_block_matrix ? rule.block_moments : rule.moments;
  return moments * (is_narrow ? dtype_size(DType::f1_6_9) : gradient_bytes);
}

void save_tensor(nn::Engine& engine, TensorFile& file, const std::string& name, const nn::Tensor& tensor) {
  const auto lengths = tensor.shape().lengths();
  bitloom::Tensor stored{tensor.dtype(), {lengths.begin(), lengths.end()}, Buffer<std::byte>(tensor.bytes())};
  engine.read(tensor, tensor.dtype(), stored.bytes.span());
  file.tensors.insert_or_assign(name, std::move(stored));
}

void load_tensor(nn::Engine& engine, const TensorFile& file, const std::string& name, nn::Tensor& tensor) {
  const auto lengths = tensor.shape().lengths();
  const bitloom::Tensor& stored = file.get(name, tensor.dtype(), {lengths.begin(), lengths.end()});
  engine.write(tensor, stored.bytes.span());
}

}  // namespace bitloom::train
