#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "cli/device.h"
#include "cli/dvae_evaluation.h"
#include "cli/eval_pairs.h"
#include "cli/image_sampling.h"
#include "cli/pair_options.h"
#include "core/error.h"
#include "core/safetensors.h"
#include "data/pairs/pair_batches.h"
#include "models/clip/clip_task.h"
#include "models/clip/model_file.h"
#include "models/clip/scores.h"
#include "models/dalle/model_file.h"
#include "models/dalle/pairs.h"
#include "models/dalle/sampler.h"

namespace bitloom::cli {
namespace {

PairOptions pairs_of(const PairEvaluationOptions& given) {
  PairOptions pairs;
  Options options("bitloom eval", "");
  pairs.declare(options);
  std::vector<std::string> args;
  if (!given.spec.empty()) args.insert(args.end(), {"--data", given.spec});
  if (!given.validation.empty()) args.insert(args.end(), {"--validation", given.validation});
  if (!given.split_seed.empty()) args.insert(args.end(), {"--split-seed", given.split_seed});
  (void)options.parse(args);
  read_pair_options(options, pairs, given.model_or_run);
  return pairs;
}

data::Pairs read_pairs(Session& session, const PairEvaluationOptions& options) {
  if (options.split == "test") {
    fail(ErrorKind::usage, "--split: test; expected train, validation or all of images with captions");
  }
  return session.comm.together([&] { return part_of(pairs_of(options), options.split, session.terminal); });
}

// visit(images (N,side,side,3)) for all pairs, cut in the centre, some at a time.
template <typename Visit>
void for_images(Terminal& terminal, const data::Pairs& pairs, std::size_t side, Visit&& visit) {
  constexpr std::size_t at_once = 32;
  data::for_centre_batches(pairs, data::first_indexes(pairs.size()), side, at_once,
                           [&](const data::PairBatch& batch, std::size_t done) {
                             visit(batch.images);
                             terminal.update(fmt::format("{} of {} images", done, pairs.size()));
                           });
}

// The first pairs, whose logits are asked for.
data::PairBatch first_pairs(const data::Pairs& pairs, const PairEvaluationOptions& options, std::size_t side) {
  return data::centre_batch(pairs, data::first_indexes(std::min(options.pairs, pairs.size())), side);
}

void write_logits(const TensorFile& file, const PairEvaluationOptions& options, Terminal& terminal) {
  file.save(options.logits);
  if (!options.json) terminal.line(options.logits);
}

void write_dvae_logits(Terminal& terminal, OpenDvae& dvae, const data::Pairs& pairs, const PairEvaluationOptions& options) {
  const models::DvaeConfig& config = dvae.config();
  const std::vector<std::uint8_t> images = first_pairs(pairs, options, config.side).images;
  const std::size_t count = images.size() / config.values();
  const std::vector<std::int32_t> codes = dvae.coder().encode(images);
  TensorFile file;
  file.put("images", {count, config.side, config.side, 3}, images);
  file.put("logits", {count, config.grid(), config.grid(), config.codes}, dvae.coder().logits(images));
  file.put("codes", {count, config.grid(), config.grid()}, codes);
  file.put("maps", {count, config.side, config.side, 6}, dvae.coder().maps(codes));
  write_logits(file, options, terminal);
}

void write_dalle_logits(Terminal& terminal, nn::Engine& engine, models::Dalle& net, const models::DalleBatch& batch,
                        const PairEvaluationOptions& options) {
  const models::DalleConfig& config = net.config();
  const std::size_t count = batch.codes.size() / config.image();
  const models::DalleLogits logits = models::dalle_logits(engine, net, batch);
  TensorFile file;
  file.put("text", {count, config.text}, batch.text);
  file.put("codes", {count, config.grid, config.grid}, batch.codes);
  file.put("text_logits", {count, config.text - 1, config.text_vocabulary}, logits.text);
  file.put("image_logits", {count, config.image(), config.codes}, logits.image);
  write_logits(file, options, terminal);
}

void write_clip_logits(Terminal& terminal, nn::Engine& engine, const models::LoadedClip& loaded, models::ClipEncoder& encoder,
                       const data::Pairs& pairs, const PairEvaluationOptions& options) {
  const models::ClipConfig& config = loaded.net->config();
  const data::ImageShape& shape = config.image.image;
  const auto [images, indexes] = first_pairs(pairs, options, shape.height);
  const std::size_t count = indexes.size();
  const std::vector<std::string> captions = captions_of(pairs, indexes);
  const std::vector<double> of_images = encoder.images(images);
  const std::vector<double> of_texts = encoder.texts(captions);
  const double factor = models::clip_factor(engine, *loaded.net);
  std::vector<float> similarities;
  const auto row = [&](const std::vector<double>& all, std::size_t i) {
    return std::span(all).subspan(i * encoder.embedding(), encoder.embedding());
  };
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t t = 0; t < count; ++t) {
      const auto image = row(of_images, i);
      similarities.push_back(
          static_cast<float>(factor * std::inner_product(image.begin(), image.end(), row(of_texts, t).begin(), 0.0)));
    }
  }
  TensorFile file;
  const auto floats = [](const std::vector<double>& numbers) { return std::vector<float>(numbers.begin(), numbers.end()); };
  file.put("images", {count, shape.height, shape.width, shape.channels}, images);
  file.put("texts", {count, config.text}, models::clip_texts(config, *loaded.tokenizer, captions));
  file.put("image_embeddings", {count, encoder.embedding()}, floats(of_images));
  file.put("text_embeddings", {count, encoder.embedding()}, floats(of_texts));
  file.put("similarities", {count, count}, similarities);
  write_logits(file, options, terminal);
}

}  // namespace

void eval_dvae(Session& session, const std::filesystem::path& file, const PairEvaluationOptions& options) {
  const data::Pairs pairs = read_pairs(session, options);
  const auto dvae =
      session.comm.together([&] { return std::make_unique<OpenDvae>(file, options.values, options.device, options.backend); });
  const models::DvaeEvaluation result =
      dvae->coder().evaluate(session.comm, pairs, {options.temperature, dvae->model().description.least_log_b});
  if (!options.logits.empty()) session.on_root([&] { write_dvae_logits(session.terminal, *dvae, pairs, options); });
  if (options.json) {
    nlohmann::json json = evaluation_json(result);
    json["split"] = options.split;
    json["temperature"] = options.temperature;
    return session.terminal.json(json);
  }
  print_evaluation(session.terminal, options.split, result);
  session.terminal.note(collapse_note(result));
}

void eval_dalle(Session& session, const std::filesystem::path& file, const PairEvaluationOptions& options) {
  const data::Pairs pairs = read_pairs(session, options);
  session.on_root([&] {
    nn::Engine engine(choose_device(options.device), options.backend);
    const models::LoadedDalle loaded = models::load_dalle(engine, file, choose_dtype(engine, options.values));
    const models::DalleConfig& config = loaded.net->config();
    models::LoadedDvae dvae = open_dvae_of(engine, options.dvae, options.model_or_run, loaded.dvae);
    models::DvaeCoder coder(engine, *dvae.net, DType::f32);
    std::vector<std::int32_t> codes;
    for_images(session.terminal, pairs, dvae.description.config.side, [&](const std::vector<std::uint8_t>& images) {
      const std::vector<std::int32_t> some = coder.encode(images);
      codes.insert(codes.end(), some.begin(), some.end());
    });
    models::DallePairs all(config, *loaded.tokenizer, captions_of(pairs), codes, {1, 1, 1, {}, 0});
    if (!options.logits.empty()) {
      write_dalle_logits(session.terminal, engine, *loaded.net, all.range(0, std::min(options.pairs, all.size())), options);
    }
    const models::EqualParts equal = equal_parts(pairs);
    double text = 0, image = 0, other = 0, text_tokens = 0;
    std::size_t better = 0, compared = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const models::DalleBatch own = all.range(i, 1);
      const models::PairNats nats = models::pair_nats(engine, *loaded.net, own);
      text += nats.text.front();
      image += nats.image.front();
      text_tokens += static_cast<double>(models::text_tokens_of(config, own.text));
      // That of the next pair with another image and another caption stands for any other.
      std::size_t next = (i + 1) % all.size();
      while (next != i && (equal.image[next] == equal.image[i] || equal.text[next] == equal.text[i]))
        next = (next + 1) % all.size();
      if (next != i) {
        const models::DalleBatch swapped{all.range(next, 1).text, own.codes};
        const double under_other = models::pair_nats(engine, *loaded.net, swapped).image.front();
        other += under_other;
        better += nats.image.front() < under_other ? 1 : 0;
        ++compared;
      }
      session.terminal.update(fmt::format("{} of {} pairs", i + 1, all.size()));
    }
    const double image_tokens = static_cast<double>(all.size() * config.image());
    nlohmann::json json = {{"split", options.split},
                           {"pairs", all.size()},
                           {"text_loss", text / std::max(text_tokens, 1.0)},
                           {"image_loss", image / image_tokens},
                           {"image_loss_of_other_captions", nullptr},
                           {"own_caption_better", nullptr}};
    if (compared > 0) {
      json["image_loss_of_other_captions"] = other / static_cast<double>(compared * config.image());
      json["own_caption_better"] = static_cast<double>(better) / static_cast<double>(compared);
    }
    if (options.json) return session.terminal.json(json);
    session.terminal.print("{}: {} pairs", options.split, all.size());
    session.terminal.print("  {:<26}{:.4f} nats per token", "text", json["text_loss"].get<double>());
    session.terminal.print("  {:<26}{:.4f} nats per token", "image", json["image_loss"].get<double>());
    if (compared == 0) return;
    session.terminal.print("  {:<26}{:.4f} nats per token; worse for {:.1f}% of the images", "image, another's caption",
                           json["image_loss_of_other_captions"].get<double>(), 100 * json["own_caption_better"].get<double>());
  });
}

void eval_clip(Session& session, const std::filesystem::path& file, const PairEvaluationOptions& options) {
  const data::Pairs pairs = read_pairs(session, options);
  session.on_root([&] {
    nn::Engine engine(choose_device(options.device), options.backend);
    const DType values = choose_dtype(engine, options.values);
    const models::LoadedClip loaded = models::load_clip(engine, file, values);
    models::ClipEncoder encoder(engine, *loaded.net, *loaded.tokenizer, values);
    std::vector<double> images;
    for_images(session.terminal, pairs, loaded.net->config().image.image.height, [&](const std::vector<std::uint8_t>& some) {
      const std::vector<double> directions = encoder.images(some);
      images.insert(images.end(), directions.begin(), directions.end());
    });
    if (!options.logits.empty()) write_clip_logits(session.terminal, engine, loaded, encoder, pairs, options);
    const std::vector<std::string> captions = captions_of(pairs);
    const models::Retrieval found =
        models::retrieval(models::ranks(images, encoder.texts(captions), encoder.embedding(), equal_parts(pairs)));
    const nlohmann::json json = {{"split", options.split},
                                 {"pairs", found.pairs},
                                 {"texts_at_1", found.texts_at_1},
                                 {"texts_at_5", found.texts_at_5},
                                 {"images_at_1", found.images_at_1},
                                 {"images_at_5", found.images_at_5},
                                 {"texts_by_chance", found.texts_by_chance},
                                 {"images_by_chance", found.images_by_chance}};
    if (options.json) return session.terminal.json(json);
    session.terminal.print("{}: {} pairs", options.split, found.pairs);
    const auto row = [&](const char* name, double at_1, double by_chance, double at_5) {
      session.terminal.print("  {:<26}nearest {:.1f}% (by chance {:.2f}%), of the 5 nearest {:.1f}%", name, 100 * at_1,
                             100 * by_chance, 100 * at_5);
    };
    row("caption of an image", found.texts_at_1, found.texts_by_chance, found.texts_at_5);
    row("image of a caption", found.images_at_1, found.images_by_chance, found.images_at_5);
  });
}

}  // namespace bitloom::cli
