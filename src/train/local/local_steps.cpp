#include "train/local/local_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "mpi/sparse_filter.h"

namespace bitloom::train {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// Neighbouring parameters of about equally many elements together.
std::vector<std::size_t> divide(const std::vector<nn::Parameter*>& parameters, std::size_t fragments) {
  const auto size_of = [](const nn::Parameter& parameter) { return parameter.is_frozen ? 0 : parameter.shape.size(); };
  std::size_t all = 0;
  for (const nn::Parameter* parameter : parameters) all += size_of(*parameter);
  std::vector<std::size_t> fragment;
  std::size_t before = 0;
  for (const nn::Parameter* parameter : parameters) {
    const std::size_t middle = before + size_of(*parameter) / 2;
    fragment.push_back(std::min(fragments - 1, middle * fragments / std::max<std::size_t>(all, 1)));
    before += size_of(*parameter);
  }
  return fragment;
}

std::vector<OuterParameters::Named> values_of(nn::Engine& engine, const std::vector<nn::Parameter*>& parameters) {
  std::vector<OuterParameters::Named> named;
  for (const nn::Parameter* parameter : parameters) {
    named.push_back({parameter->name, engine.to_host<float>(parameter->value)});
  }
  return named;
}

std::vector<Unsent::Parameter> sizes_of(const std::vector<nn::Parameter*>& parameters) {
  std::vector<Unsent::Parameter> sizes;
  for (const nn::Parameter* parameter : parameters) sizes.push_back({parameter->name, parameter->shape.size()});
  return sizes;
}

}  // namespace

void check(const LocalOptions& options) {
  if (options.inner_steps == 0) fail_field(ErrorKind::usage, "inner_steps", "0; expected at least 1");
  if (options.fragments == 0 || options.inner_steps % options.fragments != 0) {
    fail_field(ErrorKind::usage, "fragments", "{}; expected a divisor of `inner_steps`, {}", options.fragments,
               options.inner_steps);
  }
  if (options.delay >= options.inner_steps / options.fragments) {
    fail_field(ErrorKind::usage, "delay", "{} steps; expected less than there are between messages, {}", options.delay,
               options.inner_steps / options.fragments);
  }
  if (!(options.outer.rate > 0)) fail_field(ErrorKind::usage, "outer_rate", "{}; expected more than 0", options.outer.rate);
  if (!(options.outer.momentum >= 0 && options.outer.momentum < 1)) {
    fail_field(ErrorKind::usage, "outer_momentum", "{}; expected 0 to below 1", options.outer.momentum);
  }
  if (!(options.kept_share >= 0 && options.kept_share <= 1)) {
    fail_field(ErrorKind::usage, "kept_share", "{}; expected 0 to 1", options.kept_share);
  }
  if (!(options.deadline_seconds >= 0)) {
    fail_field(ErrorKind::usage, "deadline", "{}; expected a number of seconds", options.deadline_seconds);
  }
  mpi::check(options.filter);
}

std::uint64_t local_bytes(const LocalOptions& options, std::uint64_t parameters) {
  // Shared values, error feedback, a copy while replies are taken; momentum; own values of a fragment that is under way.
  const std::uint64_t whole = 3 + (options.outer.momentum > 0 ? 1 : 0);
  return (whole * parameters + parameters / options.fragments) * sizeof(float);
}

void require_local_steps(Trainer& trainer) {
  if (trainer.grid().shape().data != trainer.comm().size()) {
    fail_field(ErrorKind::usage, "exchange", "local with {} (data x pipeline x tensor); expected data-parallel processes alone",
               mpi::described(trainer.grid().shape()));
  }
  for (const nn::Parameter* parameter : trainer.parameters()) {
    if (parameter->value.dtype() == DType::f32) continue;
    fail_field(ErrorKind::usage, "exchange", "local with parameters of {}; expected f32, or bf16 with `master_weights` f32",
               dtype_name(parameter->value.dtype()));
  }
}

LocalSteps::LocalSteps(Trainer& trainer, LocalExchange& exchange, const LocalOptions& options, std::uint64_t steps,
                       double tokens, fs::path file, std::function<bool()> stop, ProgressSink& progress)
    : trainer_(trainer),
      exchange_(exchange),
      options_(options),
      steps_(steps),
      tokens_(tokens),
      file_(std::move(file)),
      stop_(std::move(stop)),
      progress_(progress),
      parameters_(trainer.parameters()),
      fragment_(divide(parameters_, options.fragments)),
      outer_(values_of(trainer.engine(), parameters_), options.outer),
      unsent_(sizes_of(parameters_), options.fragments, exchange.worker()),
      learned_from_(options.fragments) {
  check(options);
}

std::vector<float> LocalSteps::own_values(std::size_t p) { return trainer_.engine().to_host<float>(parameters_[p]->value); }

void LocalSteps::set_own_values(std::size_t p, std::span<const float> values) {
  trainer_.engine().write(parameters_[p]->value, std::as_bytes(values));
}

// In units.
std::vector<std::int32_t> LocalSteps::learned_since(std::span<const float> before, std::span<const float> own,
                                                    double weight) const {
  constexpr double limit = mpi::largest_kept<std::int32_t>;
  std::vector<std::int32_t> units(own.size());
  const double scale = weight / difference_unit;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const double learned = (static_cast<double>(before[i]) - static_cast<double>(own[i])) * scale;
    units[i] = static_cast<std::int32_t>(std::lrint(std::clamp(learned, -limit, limit)));
  }
  return units;
}

// Asks done() again and again. False if the run is to stop before.
bool LocalSteps::wait(const std::function<bool()>& done, const SignOfLife& alive) {
  constexpr auto longest = std::chrono::milliseconds(500);
  for (auto pause = std::chrono::milliseconds(5); !done(); pause = std::min<std::chrono::milliseconds>(2 * pause, longest)) {
    if ((stop_ && stop_()) || exchange_.is_stopping()) return false;
    alive();
    std::this_thread::sleep_for(pause);
  }
  return true;
}

void LocalSteps::begin(std::size_t workers, const SignOfLife& alive) {
  bool is_told_of_name = false;
  const auto take_name = [&] {
    if (exchange_.take_name()) return true;
    if (!std::exchange(is_told_of_name, true)) {
      progress_.line(fmt::format("worker {}: another run has that name in {}; waiting to see whether it is at work",
                                 exchange_.worker(), exchange_.place()));
    }
    return false;
  };
  if (!wait(take_name, alive)) return;
  unsent_.restore(file_);
  if (!exchange_.newest_rounds()) {
    // A checkpoint of step 0 has been loaded meanwhile, perhaps, which has the values of a model to begin with.
    outer_ = OuterParameters(values_of(trainer_.engine(), parameters_), options_.outer);
    TensorFile first;
    outer_.save(first);
    exchange_.publish_first_state(std::move(first), trainer_.steps());
  }
  // A state may be listed before it can be read.
  bool is_told = false;
  const auto load = [&] {
    if (load_newest_state()) return true;
    if (!std::exchange(is_told, true)) {
      progress_.line(fmt::format("waiting for a state in {} that can be read", exchange_.place()));
    }
    return false;
  };
  if (!wait(load, alive)) return;
  take_replies();
  const std::uint64_t steps = trainer_.steps();
  go_on_from_round();
  unsent_.take_back(exchange_, last_, rounds_);
  for (const mpi::Bundle& bundle : unsent_.messages()) {
    if (!unsent_.is_counted(bundle, last_) && !exchange_.has_message(bundle.update)) sent_bytes_ += exchange_.publish(bundle);
  }
  if (!unsent_.messages().empty() && unsent_.messages().back().update >= rounds_) {
    flight_ = Flight{.round = unsent_.messages().back().update, .due = 0, .since = Clock::now(), .values = {}};
    if (!wait([&] { return is_ended(*flight_); }, alive)) return;
    flight_.reset();
  }
  take_shared();
  is_joined_ = true;
  go_on_from_round();
  const bool is_done = is_over();
  // The round under way can do without a worker that comes to it in the middle.
  if (!is_done) exchange_.join(rounds_ == 0 ? 0 : rounds_ + 1);
  progress_.line(fmt::format("worker {}: joins {} after round {}", exchange_.worker(), exchange_.place(), rounds_));
  if (trainer_.steps() < steps) {
    progress_.line(
        fmt::format("worker {}: has made {} steps, but the shared rounds go as far as step {} alone; going on from there",
                    exchange_.worker(), steps, trainer_.steps()));
  }
  if (is_done) {
    progress_.line(fmt::format("all {} steps have been made there", steps_));
    exchange_.leave(Leaving::done, alive);
  }
  if (rounds_ == 0 && workers > 1) {
    progress_.line(fmt::format("waiting until {} workers are there", workers));
    wait([&] { return exchange_.workers() >= workers || exchange_.has_reply(0); }, alive);
  }
  since_ = Clock::now();
}

// Own parameters are the shared ones.
void LocalSteps::take_shared() {
  for (std::size_t p = 0; p < parameters_.size(); ++p) set_own_values(p, outer_.values(p));
  nn::refresh_copies(trainer_.engine(), parameters_);
  ++moves_;
}

// The step of the training, unless this worker is a part of a round ahead.
void LocalSteps::go_on_from_round() {
  const std::uint64_t first = std::min(rounds_ * interval(), steps_);
  const std::uint64_t end = std::min(first + interval() - 1, steps_);
  trainer_.go_on_from(std::clamp(trainer_.steps(), first, std::max(first, end)));
}

Json LocalSteps::after_step(std::uint64_t targets, const SignOfLife& alive) {
  Json line;
  if (!is_joined_) return line;  // it is to stop
  for (std::uint64_t& each : learned_from_) each += targets;
  const std::uint64_t step = trainer_.steps();
  const bool is_last = step >= steps_;
  if (flight_ && (step >= flight_->due || is_last)) finish(line, alive);
  const bool is_behind = trainer_.steps() != step;
  if (!flight_ && !is_behind && (step % interval() == 0 || is_last)) {
    send((step - 1) / interval(), step + options_.delay);
    if (options_.delay == 0 || is_last) finish(line, alive);
  }
  // Who comes to the end from far behind has own steps that are in no message.
  if (!flight_ && is_over()) take_shared();
  if (is_last && flight_) {
    leave(alive);
    fail(ErrorKind::interrupted, "stopped while waiting for the last messages of others");
  }
  return line;
}

void LocalSteps::send(std::uint64_t round, std::uint64_t due) {
  flight_ = Flight{.round = round, .due = due, .since = Clock::now(), .values = {}};
  mpi::Bundle bundle;
  bundle.update = round;
  bundle.workers = 1;
  bundle.totals.resize(options_.fragments);
  bundle.vectors.resize(parameters_.size());
  const bool is_last = trainer_.steps() >= steps_;
  const std::size_t fragment = round % options_.fragments;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (parameters_[p]->is_frozen || (!is_last && fragment_[p] != fragment)) continue;
    std::vector<float> own = own_values(p);
    bundle.vectors[p] =
        mpi::add_and_take_largest(learned_since(outer_.values(p), own, weight_of(p)), unsent_.kept(p), options_.filter);
    unsent_.fade(p, options_.kept_share);
    flight_->values[p] = std::move(own);
  }
  for (std::size_t f = 0; f < options_.fragments; ++f) {
    if (!is_last && f != fragment) continue;
    bundle.totals[f] = static_cast<std::int64_t>(std::exchange(unsent_.targets()[f], 0) + std::exchange(learned_from_[f], 0));
  }
  unsent_.add(bundle);
  unsent_.set_round_seconds(std::chrono::duration<double>(flight_->since - since_).count());
  // First what is kept: a worker that is killed in between sends it when it is back.
  unsent_.save(file_);
  sent_bytes_ += exchange_.publish(bundle);
}

bool LocalSteps::is_ended(Flight& flight) {
  // Rounds before it may have ended meanwhile, whose replies say which messages count.
  // A worker that was suspended may find the reply cleaned away, and a state in its place.
  if (rounds_ < flight.round || exchange_.newest_rounds() > flight.round) take_replies();
  // Where the reply to the round before is damaged, after a kill, that round is to be ended again first.
  const std::uint64_t round = rounds_;
  if (round <= flight.round && exchange_.try_to_end(round, last_, seconds_since(flight.since), deadline())) {
    take_replies();
    // Before anything is sent again its contents have to be known: until then the message's differences are this worker's own.
    if (rounds_ == round && !std::exchange(flight.is_told, true)) {
      progress_.line(fmt::format("waiting for a reply to round {} in {} that can be read", round, exchange_.place()));
    }
  }
  return rounds_ > flight.round;
}

double LocalSteps::deadline() const {
  if (options_.deadline_seconds > 0) return options_.deadline_seconds;
  return std::max(1.0, 0.5 * unsent_.round_seconds());
}

void LocalSteps::finish(Json& line, const SignOfLife& alive) {
  const Clock::time_point start = Clock::now();
  if (!wait([&] { return is_ended(*flight_); }, alive)) return;
  flight_.reset();
  since_ = Clock::now();
  const double waited = seconds_since(start);
  if (is_over()) {
    exchange_.leave(Leaving::done, alive);  // nobody with more steps is to wait
  } else {
    exchange_.join(rounds_);
  }
  line = {{"event", "exchange"},
          {"step", trainer_.steps()},
          {"rounds", rounds_},
          {"waited_seconds", waited},
          {"sent_bytes", std::exchange(sent_bytes_, 0)},
          {"received_bytes", std::exchange(received_bytes_, 0)}};
  // An inner process of a tree passes more on than it has itself.
  if (const auto traffic = exchange_.take_traffic()) line["tree"] = {{"sent_up", traffic->up}, {"sent_down", traffic->down}};
  if (last_) line["workers"] = last_->workers.size();
  if (rounds_ * interval() > trainer_.steps()) {
    // At its own last step a worker leaves a round before its time.
    const bool are_ahead = std::min(rounds_ * interval(), steps_) > trainer_.steps();
    if (are_ahead)
      progress_.line(fmt::format("worker {}: the others are at step {}; going on from there", exchange_.worker(),
                                 std::min(rounds_ * interval(), steps_)));
    go_on_from_round();
  }
}

// All that are there, one after the other; then own parameters go where the shared ones went, and keep what was learned since.
void LocalSteps::take_replies() {
  std::vector<std::vector<float>> before;
  for (std::size_t p = 0; p < parameters_.size(); ++p) before.emplace_back(outer_.values(p).begin(), outer_.values(p).end());
  bool went_back = false;
  while (true) {
    const auto reply = exchange_.read_reply(rounds_);
    if (!reply) {
      // Replies on the way to a state are gone.
      const std::uint64_t rounds = rounds_;
      const auto newest = exchange_.newest_rounds();
      if (newest && *newest > rounds && load_newest_state() && rounds_ > rounds) continue;
      break;
    }
    if (!reply->follows(last_)) {
      if (std::exchange(told_of_, last_->round) != last_->round) {
        progress_.line(fmt::format("round {} in {} has another reply than this worker had; going back to the last state",
                                   last_->round, exchange_.place()));
      }
      // From a state to the same two replies again: only a newer state helps.
      if (std::exchange(went_back, true) || !load_newest_state()) break;
      continue;
    }
    apply(*reply);
  }
  // By the one who ended the last round.
  const std::uint64_t every = exchange_.state_every();
  const bool is_due = rounds_ / every > exchange_.newest_rounds().value_or(0) / every || is_over();
  if (std::exchange(ended_, exchange_.ended()) != exchange_.ended() && is_due) {
    TensorFile state;
    outer_.save(state);
    if (last_) note_counted(state, *last_);
    exchange_.publish_state(rounds_, std::move(state));
    exchange_.clean();
  }
  take_over(before);
}

void LocalSteps::take_over(const std::vector<std::vector<float>>& before) {
  bool changes = false;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const std::span<const float> shared = outer_.values(p);
    const std::vector<float>* sent = nullptr;
    if (flight_ && rounds_ > flight_->round) {
      const auto found = flight_->values.find(p);
      if (found != flight_->values.end()) sent = &found->second;
    }
    if (sent == nullptr && std::ranges::equal(shared, before[p])) continue;
    const std::vector<float>& from = sent != nullptr ? *sent : before[p];
    std::vector<float> own = own_values(p);
    for (std::size_t i = 0; i < own.size(); ++i) own[i] = shared[i] + (own[i] - from[i]);
    set_own_values(p, own);
    changes = true;
    if (sent != nullptr || !flight_ || !flight_->values.contains(p)) continue;
    std::vector<float>& in_flight = flight_->values[p];
    for (std::size_t i = 0; i < own.size(); ++i) in_flight[i] += shared[i] - before[p][i];
  }
  if (!changes) return;
  nn::refresh_copies(trainer_.engine(), parameters_);
  ++moves_;
}

void LocalSteps::apply(const RoundReply& reply) {
  unsent_.settle(reply, last_);
  for (std::size_t p = 0; p < parameters_.size() && p < reply.sum.vectors.size(); ++p) {
    const mpi::SparseVector& sum = reply.sum.vectors[p];
    const double weight = static_cast<double>(reply.sum.totals.at(fragment_[p])) / tokens_;
    if (sum.size != 0 && weight > 0) outer_.step(p, sum, weight);
  }
  received_bytes_ += reply.bytes;
  rounds_ = reply.round + 1;
  last_ = reply;
}

bool LocalSteps::load_newest_state() {
  const auto state = exchange_.newest_state();
  if (!state) return false;
  outer_.load(state->file);
  rounds_ = state->rounds;
  last_ = rounds_ == 0 ? std::nullopt : exchange_.read_reply(rounds_ - 1);
  if (!last_) last_ = reply_before(*state);
  unsent_.settle_state(last_);
  return true;
}

void LocalSteps::leave(const SignOfLife& alive) {
  if (!is_joined_) return exchange_.leave(Leaving::stopped, alive);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (parameters_[p]->is_frozen) continue;
    const std::vector<float> own = own_values(p);
    std::span<const float> from = outer_.values(p);
    if (flight_ && flight_->values.contains(p)) from = flight_->values.at(p);
    unsent_.keep(p, learned_since(from, own, weight_of(p)));
  }
  for (std::size_t f = 0; f < options_.fragments; ++f) unsent_.targets()[f] += std::exchange(learned_from_[f], 0);
  unsent_.save(file_);
  exchange_.leave(Leaving::stopped, alive);
}

}  // namespace bitloom::train
