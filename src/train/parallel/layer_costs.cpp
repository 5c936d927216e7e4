#include "train/parallel/layer_costs.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/clock.h"

namespace bitloom::train {
namespace {

// Parameters that have memory as long as this lives. All are 0: what they are does not change how long a pass takes.
class Lent {
 public:
  Lent(nn::Engine& engine, std::vector<nn::Parameter*> parameters, DType values) : parameters_(std::move(parameters)) {
    nn::make_parameters(engine, parameters_, values);
    for (nn::Parameter* parameter : parameters_) {
      nn::fill(engine, parameter->value, 0);
      parameter->gradient = engine.zeros(parameter->shape, nn::parameter_type(values), nn::Use::gradients);
    }
    nn::refresh_copies(engine, parameters_);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() {
    for (nn::Parameter* parameter : parameters_) parameter->value = parameter->copy = parameter->gradient = {};
  }

 private:
  std::vector<nn::Parameter*> parameters_;
};

}  // namespace

std::vector<double> estimated_costs(nn::Sequence& net, const nn::Shape& x, double head) {
  std::vector<double> costs;
  nn::Shape shape = x;
  for (std::size_t i = 0; i < net.size(); ++i) {
    costs.push_back(net[i].cost(shape));
    shape = net[i].output(shape);
  }
  if (!costs.empty()) costs.back() += head;
  return costs;
}

std::vector<double> measured_costs(nn::Engine& engine, Task& task, DType values, std::size_t repeats) {
  nn::Sequence& net = task.net();
  nn::Stash stash;
  nn::Pass pass{engine};
  pass.stash = &stash;
  nn::Tensor x = task.input(pass);
  std::vector<double> costs;
  for (std::size_t i = 0; i < net.size(); ++i) {
    const bool is_last = i + 1 == net.size();
    std::vector<nn::Parameter*> parameters = nn::parameters_of(net[i]);
    for (nn::Parameter* head : is_last ? task.head_parameters() : std::vector<nn::Parameter*>{}) {
      if (std::ranges::count(parameters, head) == 0) parameters.push_back(head);
    }
    const Lent lent(engine, std::move(parameters), values);
    double fastest = std::numeric_limits<double>::infinity();
    nn::Tensor y;
    for (std::size_t r = 0; r < std::max<std::size_t>(repeats, 1); ++r) {
      engine.synchronize();
      const Clock::time_point start = Clock::now();
      y = net[i].forward(pass, x);
      nn::Tensor dy;
      if (is_last) {
        task.loss(pass, std::exchange(y, {}), 1, &dy);
      } else {
        dy = engine.zeros(y.shape(), y.dtype(), nn::Use::activations);
      }
      net[i].backward(pass, dy);
      engine.synchronize();
      fastest = std::min(fastest, seconds_since(start));
    }
    net[i].end_step(pass, false, 1);
    costs.push_back(fastest);
    x = std::move(y);
  }
  return costs;
}

}  // namespace bitloom::train
