// The page of a convolutional net's run.
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/image.h"
#include "report/picture.h"
#include "report/report.h"
#include "tests/report/page.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::report;
using namespace bitloom::test;
using nlohmann::json;

namespace {

// An image of 2 x 2 pixels: red, green, blue, white.
WrongImage wrong_image() { return {2, 2, 3, {255, 0, 0, 255, 0, 255, 0, 255, 0, 0, 255, 255}, "air<plane", "bird", 0.973}; }

Classification classified() {
  Classification test;
  test.images = 200;
  test.correct = 165;
  test.views = 6;
  test.loss = 0.5;
  test.classes = {"air<plane", "bird"};
  test.confusion = {{90, 10}, {25, 75}};
  test.wrong = {wrong_image()};
  return test;
}

ReportInput cnn_run() {
  ReportInput input;
  input.title = "runs/cnn";
  input.config = json{{"net", "tiny"}, {"keep", "last"}};
  input.metrics.push_back(json::parse(R"({"event":"start","kind":"cnn","time":"2026-11-24T10:00:00Z","version":"0.1.0",
    "command":"bitloom train cnn","steps":40,"steps_per_epoch":20,"parameters":33882,"dtype":"f32","train_images":45000,
    "validation_images":5000,"test_images":200,"peak_operations":1e11,"operations_per_image":12e6,"net":{"name":"ti<ny"}})"));
  for (int step = 10; step <= 40; step += 10) {
    input.metrics.push_back(json{{"event", "step"},
                                 {"step", step},
                                 {"loss", 2.0 - 0.01 * step},
                                 {"rate", 0.01 * step},
                                 {"gradient_norm", 0.5},
                                 {"targets", step * 100},
                                 {"seconds", step * 0.5},
                                 {"targets_per_second", 3000},
                                 {"stash_bytes", 7 << 20},
                                 {"memory_bytes", 5 << 20}});
    if (step % 20 != 0) continue;
    input.metrics.push_back(json{
        {"event", "evaluation"}, {"step", step}, {"loss", step == 20 ? 0.9 : 1.1}, {"accuracy", step == 20 ? 0.71 : 0.74}});
  }
  input.metrics.push_back(json::parse(R"({"event":"result","seconds":30.0,"model_bytes":3500000})"));
  input.filters = {2, 1, 1, 3, {1, 0, -1, 0.5F, 0.5F, 0.5F}};
  input.float_layers = {{"layers.0", "conv", "16 x 16 x 16", 432, 110592}, {"layers.1", "lin<ear", "2", 34, 32}};
  input.test = classified();
  return input;
}

}  // namespace

TEST_CASE("the page of a convolutional net's run has every part", "[report]") {
  const std::string page = render_report(cnn_run());
  require_self_contained(page);
  for (const char* id : {"headline", "curves", "confusion", "mistakes", "filters", "layers", "configuration", "repeat"}) {
    INFO(id);
    CHECK(count_of(page, "id=\"" + std::string(id) + "\"") == 1);
  }
  for (const char* text :
       {"convolutional net ti&lt;ny · 33.9 k parameters · f32 · 45,000 training images",
        ">82.50%<",  // of the test images
        "200 images, 6 views of each",
        ">74.00%<",  // of the model, which is that of the last step
        "5,000 images as they are, after epoch 2", ">4000<", ">3000/s<", "images, median; 36% of the matmul peak",
        ">2.00 M<",  // multiply-adds
        ">Validation accuracy<", ">epoch<", ">images/s<", "air&lt;plane → bird: 10 (10.0%)",
        "Of the 35 test images that were classified wrongly", "<b>air&lt;plane</b>taken for bird<span>97.3%</span>",
        "The kernels of the first convolution.", ">lin&lt;ear<", ">466<"}) {
    INFO(text);
    CHECK(has(page, text));
  }
  for (const char* text : {"oken", "perplexity", "Kept for backward", "encoder", "not trained"}) {
    INFO(text);
    CHECK(!has(page, text));
  }
  CHECK(shows_value(page, "epoch 0.5", "training: 1.9"));
  CHECK(shows_value(page, "epoch 2", "Validation accuracy: 74"));  // a curve without a name of its own
  CHECK(render_report(cnn_run()) == page);
}

TEST_CASE("the page says what a process sends in a step, where there are several", "[report]") {
  ReportInput input = cnn_run();
  CHECK(!has(render_report(input), "by a process in a step"));
  for (json& line : input.metrics) {
    if (line["event"] == "step") line["sent_bytes"] = 3 << 20;
  }
  const std::string page = render_report(input);
  CHECK(has(page, "by a process in a step"));
  CHECK(has(page, ">3.0 MiB<"));
}

TEST_CASE("of a run that keeps the best model the page shows that one's validation accuracy", "[report]") {
  ReportInput input = cnn_run();
  input.config["keep"] = "best";
  CHECK(has(render_report(input), ">71.00%<"));
  // Without validation images there is none, and the loss has the whole width.
  std::erase_if(input.metrics, [](const json& line) { return line["event"] == "evaluation"; });
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(!has(page, "Validation"));
  CHECK(page.find("chart-title\">Loss<") < page.find("<div class=\"pair\">"));
}

TEST_CASE("a convolutional net's page without test images says why", "[report]") {
  ReportInput input = cnn_run();
  input.test.reset();
  input.test_missing = "the data are in <nowhere>.";
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(has(page, "There is no confusion matrix here, and there are no images: the data are in &lt;nowhere&gt;."));
  for (const char* text : {"id=\"mistakes\"", "Confusion matrix", "Test accuracy"}) CHECK(!has(page, text));
  CHECK(has(page, "id=\"layers\""));
}

TEST_CASE("the page of a convolutional net's unfinished run says so", "[report]") {
  ReportInput input = cnn_run();
  input.metrics.pop_back();
  input.test->model = "the checkpoint after step 40";
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(has(page, "This run is unfinished"));
  CHECK(has(page, "200 images, 6 views of each; the checkpoint after step 40"));
  CHECK(has(page, "They were classified by the checkpoint after step 40."));
  // Only begun, and with what is of other types.
  input.metrics.resize(1);
  require_self_contained(render_report(input));
  input.metrics[0]["net"] = "tiny";
  input.metrics[0]["steps_per_epoch"] = 0;
  input.metrics.push_back(json::parse(R"({"event":"step","step":"x","loss":null})"));
  input.metrics.push_back(json::parse(R"({"event":"evaluation","step":3,"accuracy":"high","loss":1})"));
  const std::string odd = render_report(input);
  require_self_contained(odd);
  CHECK(!has(odd, ">nan"));
}

TEST_CASE("kernels of a whitening layer are told from trained ones", "[report]") {
  ReportInput input = cnn_run();
  input.float_layers[0].kind = "whitening";
  CHECK(has(render_report(input), "They are not trained."));
}

TEST_CASE("a probability that is nearly 1 is not shown as 100%", "[report]") {
  ReportInput input = cnn_run();
  input.test->wrong.assign(2, wrong_image());
  input.test->wrong[0].probability = 0.99996;
  input.test->wrong[1].probability = 1;
  const std::string page = render_report(input);
  CHECK(has(page, "<span>over 99.9%</span>"));
  CHECK(has(page, "<span>100.0%</span>"));
}

TEST_CASE("images in the page are the pixels that were given", "[report]") {
  const WrongImage image = wrong_image();
  const std::string png = to_png(image.pixels, 3, 2, 2);
  const TempDir folder;
  write_file(folder / "image.png", png);
  CHECK(data::read_image(folder / "image.png").pixels == image.pixels);
  write_file(folder / "image.png", to_png(std::vector<std::uint8_t>{7, 200}, 1, 1, 2));
  CHECK(data::read_image(folder / "image.png", 1).pixels == std::vector<std::uint8_t>{7, 200});
  // A fourth channel is not shown.
  write_file(folder / "image.png", to_png(std::vector<std::uint8_t>{1, 2, 3, 4}, 4, 1, 1));
  CHECK(data::read_image(folder / "image.png").pixels == std::vector<std::uint8_t>{1, 2, 3});
  CHECK(has(message_of(ErrorKind::usage, [] { to_png(std::vector<std::uint8_t>(11), 3, 2, 2); }), "11 bytes"));
  // The same bytes are in the page: base64 of its first three, "\x89PN".
  ReportInput input = cnn_run();
  CHECK(has(render_report(input), "base64,iVBORw0KGgo"));
}
