// The pages of models of images and captions.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "report/report.h"
#include "tests/report/page.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::report;
using namespace bitloom::test;
using nlohmann::json;

namespace {

PageImage image(std::uint8_t grey, std::size_t side = 2) {
  return {side, side, 1, std::vector<std::uint8_t>(side * side, grey)};
}

// Four lines of steps and two of evaluations.
ReportInput run_of(const char* kind, json start, const std::vector<json>& evaluations) {
  ReportInput input;
  input.title = std::string("runs/") + kind;
  input.config = json{{"net", "tiny"}, {"keep", "last"}};
  start.update({{"event", "start"}, {"kind", kind}, {"steps", 40}, {"dtype", "f32"}, {"peak_operations", 1e11}});
  input.metrics.push_back(start);
  for (int step = 10; step <= 40; step += 10) {
    input.metrics.push_back(json{{"event", "step"},
                                 {"step", step},
                                 {"loss", 2.0 - 0.01 * step},
                                 {"rate", 0.001},
                                 {"gradient_norm", 0.5},
                                 {"targets", step * 100},
                                 {"seconds", step * 0.5},
                                 {"targets_per_second", 3000},
                                 {"stash_bytes", 7 << 20},
                                 {"memory_bytes", 5 << 20}});
    if (step % 20 != 0) continue;
    json line = evaluations[static_cast<std::size_t>(step / 20 - 1)];
    line.update({{"event", "evaluation"}, {"step", step}});
    input.metrics.push_back(line);
  }
  input.metrics.push_back(json{{"event", "result"}, {"seconds", 30.0}, {"model_bytes", 3500000}});
  return input;
}

ReportInput dvae_run() {
  const auto evaluation = [](double psnr, int used) {
    return json{{"loss", 0.4},          {"psnr", psnr}, {"relaxed_elb", -0.5}, {"hard_elb", -0.4},   {"kl", 24.0},
                {"codes_in_use", used}, {"codes", 32},  {"perplexity", 7.25},  {"temperature", 0.5}, {"kl_weight", 3.0}};
  };
  ReportInput input = run_of("dvae",
                             {{"net", {{"name", "ti<ny"}, {"side", 4}}},
                              {"train_images", 922},
                              {"validation_images", 103},
                              {"operations_per_image", 12e6}},
                             {evaluation(9.5, 11), evaluation(12.25, 19)});
  input.samples = Samples{{"a <cat>", "a dog"}, {{"step 40", {image(9), image(10)}}, {"original", {image(8), {}}}}, 3};
  input.reconstructions = {{"a <cat>", image(1), image(2), 20.5}, {"a dog", image(3), image(4), 18}};
  CodeUse use;
  use.images = 103;
  use.counts = {5, 0, 10, 1, 0};
  input.codes = use;
  return input;
}

ReportInput dalle_run() {
  const auto evaluation = [](double image_loss) {
    return json{{"loss", 4.5},
                {"text_loss", 3.25},
                {"image_loss", image_loss},
                {"training_text_loss", 3.0},
                {"training_image_loss", 4.75}};
  };
  ReportInput input =
      run_of("dalle", {{"net", {{"codes", 512}}}, {"parameters", 5000000}, {"train_pairs", 922}, {"validation_pairs", 103}},
             {evaluation(5.5), evaluation(4.875)});
  input.samples = Samples{{"a cat"}, {{"step 20", {image(1)}}, {"step 40", {image(2)}}}, 0};
  return input;
}

ReportInput clip_run() {
  const auto evaluation = [](double found, double loss) {
    return json{{"loss", loss},         {"texts_at_1", found},  {"texts_at_5", 2 * found},
                {"images_at_1", 0.125}, {"images_at_5", 0.375}, {"temperature", 0.0625}};
  };
  ReportInput input =
      run_of("clip", {{"micro_batch", 16}, {"train_pairs", 922}, {"validation_pairs", 50}, {"operations_per_pair", 4e6}},
             {evaluation(0.25, 2.0), evaluation(0.1875, 2.5)});
  input.similarities =
      Similarities{{"a <cat>", "a dog"}, {image(1), image(2)}, {{0.75, -0.25}, {0.125, 0.5}}, 50, {1, 3}, {2, 17}};
  return input;
}

void check_all(const std::string& page, const std::vector<const char*>& texts) {
  for (const char* text : texts) {
    INFO(text);
    CHECK(has(page, text));
  }
}

void check_none(const std::string& page, const std::vector<const char*>& texts) {
  for (const char* text : texts) {
    INFO(text);
    CHECK(!has(page, text));
  }
}

}  // namespace

TEST_CASE("the page of a discrete VAE's run has its curves, reconstructions and codes", "[report]") {
  const std::string page = render_report(dvae_run());
  require_self_contained(page);
  for (const char* id : {"headline", "curves", "samples", "reconstructions", "codes", "configuration"}) {
    INFO(id);
    CHECK(count_of(page, "id=\"" + std::string(id) + "\"") == 1);
  }
  check_all(page,
            {"discrete VAE ti&lt;ny · f32 · 922 training images", ">12.25 dB<", "103 images without noise, after step 40",
             ">19 of 32<", "perplexity 7.25", ">-0.4000<", "relaxed -0.5000", "images, median; 36% of the matmul peak",
             // Images of 3 x 4 x 4 numbers: 24 nats are half a nat each, with a weight of 3 in the loss and of 1 in the bounds.
             ">Divergence from the uniform prior<", ">Weight of the divergence<", ">Temperature of the relaxation<",
             "title=\"a &lt;cat&gt;\"", ">step 40</th>", ">original</th>", "2 of 5 steps with pictures are shown", ">20.5 dB<",
             "103 held-out images are 16 tokens of 5 codes: 3 are used, 2 never. Half of the tokens are of the 1 most",
             ">2 never used<", "Reconstructions by step"});
  for (const char* line : {"validation: 1.5", "relaxed: 0", "hard: -0.1", "in use: 19", "perplexity: 7.25"}) {
    INFO(line);
    CHECK(shows_value(page, "step 40", line));
  }
  check_none(page, {"oken of the", "Kept for backward", "accuracy", "unfinished", "Not shown", ">nan", "to classify"});
  CHECK(count_of(page, "<img ") == 3 + 2 * 2);  // the gap has none
  // Bars for wide and for narrow screens, for the used codes only.
  CHECK(count_of(page, "<path style=\"fill:var(--s0)\"") == 2);
  ReportInput even = dvae_run();
  even.codes->counts = {4, 4};
  CHECK(!has(render_report(even), "never used<"));
}

TEST_CASE("the page of a text-to-image transformer's run has losses of text and image, and what it drew by step", "[report]") {
  ReportInput input = dalle_run();
  const std::string page = render_report(input);
  require_self_contained(page);
  check_all(page, {"text-to-image transformer tiny · 5.00 M parameters · f32 · 922 training pairs", ">4.8750<",
                   "nats per code of 103 validation pairs, after step 40; 6.24 if all 512 codes were as likely", ">3.2500<",
                   ">Text loss<", ">Image loss<", ">thousand image tokens/s<",
                   "Images that the model drew for the same captions", ">step 20</th>"});
  CHECK(shows_value(page, "step 40", "training pairs: 4.75"));
  CHECK(shows_value(page, "step 20", "validation pairs: 5.5"));
  check_none(page, {"perplexity", "PSNR", "id=\"codes\"", "are shown; the others", "Not shown"});
  // The first evaluation is as good as the last, and the model is that of the first of the best.
  input.config["keep"] = "best";
  CHECK(has(render_report(input), ">5.5000<"));
  input.samples->rows[1].images.clear();
  CHECK(message_of(ErrorKind::usage, [&] { render_report(input); }) ==
        "row \"step 40\" of samples has 0 images: expected 1, one per caption");
}

TEST_CASE("the page of a contrastive model's run has retrieval beside chance, and a map of cosines", "[report]") {
  ReportInput input = clip_run();
  const std::string page = render_report(input);
  require_self_contained(page);
  check_all(page, {"contrastive model tiny · f32 · 922 training pairs", ">18.75%<", ">12.50%<",
                   "of 50 images, the own caption nearest; chance 2.00%", ">37.50%<",
                   "captions, chance 10.00%; images 37.50%, chance 10.00%", ">0.0625<", ">chance<", "telling 16 pairs apart",
                   "2.77 without any knowledge", "12% of the matmul peak", "a &lt;cat&gt;, 2: -0.25",
                   "data-heading=\"image&#39;s rank\">17<", "among all 50 held-out ones", "cosines from -0.25, pale, to 0.75"});
  CHECK(count_of(page, "<image ") == 2 * 2);
  CHECK(shows_value(page, "step 20", "captions of images: 25"));
  CHECK(shows_value(page, "step 20", "chance: 2"));
  check_none(page, {"PSNR", "id=\"samples\"", "Not shown"});
  input.config["keep"] = "best";
  CHECK(has(render_report(input), ">25.00%<"));
}

TEST_CASE("pages of runs whose metrics lack lines say what there is, and what is missing", "[report]") {
  for (ReportInput input : {dvae_run(), dalle_run(), clip_run()}) {
    input.kind = input.metrics[0]["kind"];
    INFO(input.kind);
    input.missing = {"images: <gone>.", "the rest."};
    const ReportInput whole = input;
    // Unfinished, without a start, with odd values, with nothing.
    input.metrics.pop_back();
    std::string page = render_report(input);
    require_self_contained(page);
    check_all(page, {"This run is unfinished", "<b>Not shown:</b> images: &lt;gone&gt;.", "<b>Not shown:</b> the rest."});
    input.metrics.erase(input.metrics.begin());
    page = render_report(input);
    require_self_contained(page);
    CHECK(has(page, "40 of — steps are recorded"));
    CHECK(has(page, "id=\"curves\""));
    for (json& line : input.metrics) {
      for (auto& [key, value] : line.items()) {
        if (key != "event") value = "odd";
      }
    }
    page = render_report(input);
    require_self_contained(page);
    check_none(page, {">nan", " nan "});
    input.metrics.clear();
    input.samples.reset();
    input.reconstructions.clear();
    input.codes.reset();
    input.similarities.reset();
    page = render_report(input);
    require_self_contained(page);
    check_all(page, {"<b>Nothing has been recorded.</b> The run has no metrics.", "id=\"configuration\""});
    check_none(page, {"id=\"curves\"", "id=\"headline\"", "id=\"samples\"", "id=\"codes\"", "id=\"similarities\""});
    // Samples or similarities of the model are shown without any metrics.
    input = whole;
    input.metrics.clear();
    input.model = "the checkpoint after step 7";
    page = render_report(input);
    require_self_contained(page);
    CHECK(has(page, input.samples ? "id=\"samples\"" : "id=\"similarities\""));
    CHECK(has(page, "They are those of the checkpoint after step 7.") == (input.kind != "dalle"));
  }
}
