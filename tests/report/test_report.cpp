#include "core/error.h"
#include "report/report.h"
#include "tests/report/page.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::report;
using bitloom::test::has;
using nlohmann::json;

namespace {

json start_event() {
  return json::parse(R"({"event":"start","time":"2026-11-20T23:44:00Z","version":"0.1.0",
    "command":"mpirun -n 2 bitloom train binary --net tiny","ranks":2,"threads":1,"kernels":"avx512","net":"tiny",
    "data":"cifar10","train_images":45000,"validation_images":5000,"test_images":8000})");
}

json epoch_event(const std::string& layer, int epoch, double seconds) {
  json event = json::parse(R"({"event":"epoch","epochs":2,"rate":0.97,"images_per_second":4100.0,
    "heads":[{"loss":1.2,"train_accuracy":0.55,"validation_accuracy":0.61}],
    "layers":[{"flips_per_step":812.0,"flip_share":0.0021,"active_share":0.07,"offset":-1.3,"window":0.31}],
    "times":{"data":0.3,"encode":0.2,"prefix":0.1,"forward":2.0,"head":1.0,"gradient":2.0,"reduce":0.4,"update":0.5}})");
  event["stage"] = layer;
  event["epoch"] = epoch;
  event["seconds"] = seconds;
  event["heads"][0]["layer"] = layer;
  event["layers"][0]["layer"] = layer;
  return event;
}

ReportInput full_run() {
  ReportInput input;
  input.title = "runs/one";
  input.config = json::parse(R"({"batch":128,"net":"tiny","augment":["crop","flip"],"encoder":{"patch":3}})");
  input.metrics.push_back(start_event());
  double seconds = 0;
  input.metrics.push_back(
      json::parse(R"({"event":"stage","stage":"layer1","seconds":0.5,"reused":true,"validation_accuracy":0.6})"));
  for (const char* layer : {"layer2", "layer3"}) {
    for (int epoch = 1; epoch <= 2; ++epoch) input.metrics.push_back(epoch_event(layer, epoch, seconds += 100));
    input.metrics.push_back(json{{"event", "stage"}, {"stage", layer}, {"seconds", 200}, {"validation_accuracy", 0.766}});
  }
  input.metrics.push_back(json::parse(R"({"event":"result","validation_accuracy":0.84,"test_accuracy":0.8312,"images":8000,
    "confusion":[[90,10],[25,75]],"classes":["airplane","truck"],"seconds":540.0,"peak_memory_bytes":1073741824,
    "model_bytes":2048,"weight_bits":12345,"bit_macs":7654321})"));
  input.filters = {2, 1, 1, 3, {1, 0, -1, 0.5F, 0.5F, 0.5F}};
  input.layers = {{"layer1", "input", "32 x 32 x 64", 1000, 5000, "reused"},
                  {"layer2", "layer1", "16 x 16 x 64", 2000, 500, "trained"}};
  return input;
}

}  // namespace

TEST_CASE("the report of a full run has every part") {
  const std::string page = render_report(full_run());
  require_self_contained(page);
  for (const char* id :
       {"headline", "learning", "stages", "confusion", "time", "activity", "filters", "layers", "configuration", "repeat"}) {
    INFO(id);
    CHECK(count_of(page, "id=\"" + std::string(id) + "\"") == 1);
  }
  for (const char* text : {"runs/one",
                           "83.12%",
                           "84.00%",
                           "9 min 00 s",
                           "4100",
                           "1 thread each",
                           "avx512",
                           "12.3 k",
                           "2.0 KiB",
                           "7.65 M",
                           "1.0 GiB",  // headline
                           ">Accuracy<",
                           ">Training loss<",
                           ">Flips per step<",
                           ">Pixels in the surrogate-gradient window<",  // charts
                           "airplane → truck: 10 (10.0%)",
                           ">75.0<",
                           "reused",
                           "76.60%",
                           ">3,000<",
                           "mpirun -n 2 bitloom train binary --net tiny",
                           ">crop, flip<",
                           "&quot;patch&quot;: 3"}) {
    INFO(text);
    CHECK(has(page, text));
  }
  CHECK(has(page, "gradient: 4<"));  // seconds, summed over the epochs of a stage
  CHECK(has(page, "other: 187<"));   // 200 s in the stage less 2 x 6.5 s in its steps
  CHECK(!has(page, "unfinished"));
  CHECK(render_report(full_run()) == page);
}

TEST_CASE("the report of a run with sparse messages shows their size") {
  ReportInput input = full_run();
  CHECK(!has(render_report(input), "id=\"messages\""));
  for (json& line : input.metrics) {
    if (line["event"] == "epoch") {
      line["exchange"] = {{"bytes_per_worker_update", 2048.0}, {"bytes_per_reply", 1500.0}, {"sent_share", 0.003}};
    }
  }
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(count_of(page, "id=\"messages\"") == 1);
  for (const char* text : {">Message size<", ">Gradients sent<", ">sent<", ">received<"}) {
    INFO(text);
    CHECK(has(page, text));
  }
}

TEST_CASE("the report of a run with sparse messages shows where the time of an update goes") {
  ReportInput input = full_run();
  double wait = 0.05;
  for (json& line : input.metrics) {
    if (line["event"] != "epoch") continue;
    const auto row = [](double compute, double waits) {
      return json{{"compute", compute}, {"encode", 0.01}, {"update", 0.04}, {"wait", waits}};
    };
    line["exchange"] = {
        {"updates", line["epoch"] == 1 ? 10 : 30},
        {"seconds_per_update", {{"mean", row(0.1, wait)}, {"root", row(0.05, 0.1)}, {"busiest", row(0.14, 0)}}}};
    wait = wait == 0.05 ? 0.25 : 0.05;
  }
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(count_of(page, ">Time of an update<") == 2);  // for wide screens and for phones
  // 10 updates of 200 ms, 30 of 400 ms: weighted by updates.
  CHECK(has(page, ">350 ms<"));
  CHECK(has(page, "compute 29%, encode 3%, update 11%, wait 57%"));
  for (const char* text : {">layer2: mean<", ">layer3: root<", "wait: 200<", "compute: 140<", ">190 ms<"}) {
    INFO(text);
    CHECK(has(page, text));
  }
  // One rank has no others.
  input.metrics[0]["ranks"] = 1;
  const std::string alone = render_report(input);
  CHECK(!has(alone, "layer2: mean"));
  CHECK(has(alone, ">Time of an update<"));
  // A figure that is missing or no time: no bar.
  for (json& line : input.metrics) {
    if (line["event"] == "epoch") line["exchange"]["seconds_per_update"]["mean"]["wait"] = -1;
  }
  CHECK(!has(render_report(input), ">Time of an update<"));
}

TEST_CASE("the report of an unfinished run says so") {
  ReportInput input = full_run();
  input.metrics = {start_event(), epoch_event("layer1", 1, 61)};
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(has(page, "This run is unfinished"));
  CHECK(has(page, "epoch 1 of 2 of stage layer1, 1 min 01 s after the start"));
  CHECK(has(page, "Validation accuracy so far"));
  CHECK(has(page, "61.00%"));
  CHECK(has(page, "id=\"learning\""));
  CHECK(!has(page, "id=\"confusion\""));
}

TEST_CASE("reports without measurements say so") {
  const std::string empty = render_report({});
  require_self_contained(empty);
  CHECK(has(empty, "Nothing has been recorded yet"));

  ReportInput input;
  input.metrics = {start_event()};
  const std::string begun = render_report(input);
  require_self_contained(begun);
  CHECK(has(begun, "No epoch has finished yet"));
  CHECK(has(begun, "id=\"repeat\""));
}

TEST_CASE("a resumed run shows the command that began it") {
  ReportInput input = full_run();
  json again = start_event();
  again["command"] = "bitloom train binary --resume";
  again["kernels"] = "avx2";
  input.metrics.insert(input.metrics.begin() + 3, again);
  const std::string page = render_report(input);
  CHECK(has(page, "mpirun -n 2 bitloom train binary"));
  CHECK(!has(page, "--resume"));
  CHECK(has(page, "resumed once"));
  CHECK(has(page, ">avx2<"));
}

TEST_CASE("hostile strings stay text") {
  const std::string evil = "</title><script>alert('x')</script>\"&\x01\xFF";
  ReportInput input = full_run();
  input.title = evil;
  input.config = {{evil, evil}, {"list", {evil}}, {"nested", {{evil, evil}}}};
  for (json& event : input.metrics) {
    for (const char* key : {"time", "version", "command", "kernels", "net", "data", "stage"}) {
      if (event.contains(key)) event[key] = evil;
    }
    for (const char* key : {"heads", "layers"}) {
      if (event.contains(key)) event[key][0]["layer"] = evil;
    }
    if (event.contains("times")) event["times"][evil] = 1.0;
    if (event.contains("classes")) event["classes"] = {evil, evil};
  }
  input.layers = {{evil, evil, evil, 1, 1, evil}};
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(!has(page, "alert('x')"));
  CHECK(has(page, "&lt;script&gt;"));
}

TEST_CASE("metrics of the wrong type count as missing") {
  ReportInput input;
  input.config = json::array({1, 2});
  for (
      const char* text :
      {"null", "[]", "{}", R"({"event":7})", R"({"event":"something new","x":1})",
       R"({"event":"start","time":5,"ranks":"two","command":["a"]})", R"({"event":"epoch"})",
       R"({"event":"epoch","stage":"a","epoch":null,"seconds":null,"heads":null,"layers":{},"times":[]})",
       R"({"event":"epoch","stage":"a","epoch":2,"seconds":1e300,"images_per_second":-1,
               "heads":[{"layer":"a","loss":null,"validation_accuracy":1e308},{},3],"layers":[{"layer":"a","flips_per_step":0}],
               "times":{"data":null,"forward":-3,"extra":1e300}})",
       R"({"event":"epoch","stage":"a","epoch":3,"seconds":20,"heads":[{"layer":"a","loss":1,"validation_accuracy":0.5}]})",
       R"({"event":"stage","stage":"a","seconds":"long","reused":"yes"})",
       R"({"event":"result","confusion":[[1,null,3],7,[-5]],"classes":["one",2],"peak_memory_bytes":-1,"model_bytes":1e300})"}) {
    input.metrics.push_back(json::parse(text));
  }
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(has(page, "50.00%"));
  CHECK(has(page, "one → class 2: 3 (75.0%)"));
  CHECK(has(page, "no images"));
  CHECK(!has(page, "id=\"configuration\""));
  CHECK(!has(page, ">nan"));
  CHECK(!has(page, ">inf"));
}

TEST_CASE("with many classes the report shows the worst first") {
  ReportInput input;
  json counts = json::array(), names = json::array();
  for (int i = 0; i < 30; ++i) {
    std::vector<int> row(30, 0);
    row[static_cast<std::size_t>(i)] = 10 + i;
    row[static_cast<std::size_t>((i + 1) % 30)] += 10;
    counts.push_back(row);
    names.push_back("class " + std::to_string(i));
  }
  input.metrics = {json{{"event", "result"}, {"confusion", counts}, {"classes", names}}};
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(has(page, "the 12 lowest of 30"));
  CHECK(has(page, "<summary>all classes</summary>"));
}

TEST_CASE("filters whose sizes do not fit are refused") {
  ReportInput input;
  input.filters = {2, 3, 3, 3, std::vector<float>(53)};
  try {
    render_report(input);
    FAIL("nothing thrown");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(std::string(error.what()).find("53 values") != std::string::npos);
  }
}

namespace {

ReportInput float_run() {
  ReportInput input;
  input.title = "runs/gpt<1>";
  input.config = json{{"net", "tiny"}, {"steps", 40}};
  input.metrics.push_back(json::parse(R"({"event":"start","kind":"gpt","time":"2026-11-22T10:00:00Z","version":"0.1.0",
    "command":"bitloom train gpt","steps":40,"parameters":875000,"dtype":"f32","peak_operations":1e11,
    "operations_per_token":5e6})"));
  for (int step = 10; step <= 40; step += 10) {
    input.metrics.push_back(json{{"event", "step"},
                                 {"step", step},
                                 {"loss", 4.0 - 0.05 * step},
                                 {"rate", 0.001 * step},
                                 {"gradient_norm", 1.5},
                                 {"targets", step * 1000},
                                 {"seconds", step * 0.5},
                                 {"targets_per_second", 12000},
                                 {"stash_bytes", 1 << 20},
                                 {"memory_bytes", 5 << 20}});
    input.metrics.push_back(json{{"event", "evaluation"}, {"step", step}, {"loss", step == 40 ? 3.0 : 4.1 - 0.05 * step}});
  }
  return input;
}

}  // namespace

TEST_CASE("the page of a worker of local steps shows its rounds", "[report][local]") {
  ReportInput input = float_run();
  CHECK(!has(render_report(input), "whose messages a round has"));
  for (int step = 10; step <= 40; step += 10) {
    input.metrics.push_back(json{{"event", "exchange"},
                                 {"step", step},
                                 {"rounds", step / 10},
                                 {"workers", 8},
                                 {"sent_bytes", 3 << 20},
                                 {"received_bytes", 7 << 20},
                                 {"waited_seconds", 0.5}});
  }
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(has(page, "whose messages a round has"));
  CHECK(has(page, "Waiting for a round"));
  CHECK(has(page, "the last of 4; the reply has 7.0 MiB"));
}

TEST_CASE("the page of a float model's run shows its curves and figures, unfinished too", "[report]") {
  ReportInput input = float_run();
  const std::string unfinished = render_report(input);
  require_self_contained(unfinished);
  CHECK(has(unfinished, "40 of 40 steps are recorded"));
  CHECK(has(unfinished, "875 k parameters"));
  CHECK(has(unfinished, "2.6000"));  // the best validation loss, not the last
  CHECK(has(unfinished, "60% of the matmul peak"));
  CHECK(has(unfinished, "Gradient norm"));
  CHECK(has(unfinished, "runs/gpt&lt;1&gt;"));
  input.metrics.push_back(json::parse(R"({"event":"result","seconds":30.0,"model_bytes":3500000})"));
  const std::string finished = render_report(input);
  require_self_contained(finished);
  CHECK(!has(finished, "unfinished"));
  CHECK(has(finished, "3.3 MiB"));
  // Only begun, and with what is not a number.
  input.metrics.resize(1);
  CHECK(has(render_report(input), "no step has been recorded yet"));
  input.metrics.push_back(json::parse(R"({"event":"step","step":"x","loss":null})"));
  require_self_contained(render_report(input));
}

TEST_CASE("the page of a GPT's run shows texts that it drew, and no share of a peak that was measured too low", "[report]") {
  ReportInput input = float_run();
  CHECK(!has(render_report(input), "Text by step"));
  for (int step = 1; step <= 30; ++step) {
    input.metrics.push_back(
        json{{"event", "samples"}, {"step", step}, {"text", "text <" + std::to_string(step) + ">\nand a line"}});
  }
  input.metrics.push_back(json::parse(R"({"event":"samples","step":31})"));
  input.metrics[0]["peak_operations"] = 1e10;
  const std::string page = render_report(input);
  require_self_contained(page);
  for (const char* shown : {"text &lt;1&gt;\nand a line", "text &lt;30&gt;"}) CHECK(has(page, shown));
  CHECK(!has(page, "text &lt;2&gt;"));
  CHECK(!has(page, "matmul peak"));
}

// It said "learning-rate 0", which stands for a rate that depends on the net.
TEST_CASE("the page of a float model's run shows the values that options stood for", "[report]") {
  ReportInput input = float_run();
  input.config["learning-rate"] = "0";
  input.config["dropout"] = "-1";
  input.metrics[0]["options"] = json{{"learning-rate", 0.00375}, {"dropout", 0.125}, {"heads", 4}};
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(has(page, "0.00375"));
  CHECK(has(page, "0.125"));
  CHECK(!has(page, "-1<"));
  CHECK(!has(page, "heads"));  // which is no option of this run
  // Also where the file of metrics has something else there.
  for (const json& odd : {json("x"), json::array(), json{{"dropout", json::object()}}}) {
    input.metrics[0]["options"] = odd;
    require_self_contained(render_report(input));
  }
}

// Charts of half the page's width stood alone in rows, and were drawn twice too large.
TEST_CASE("small charts of a float model's run stand in pairs", "[report]") {
  const std::string page = render_report(float_run());
  const std::size_t begin = page.find("<div class=\"pair\">");
  REQUIRE(begin != std::string::npos);
  for (const char* title : {"Learning rate", "Gradient norm", "Speed", "Memory of tensors"}) {
    INFO(title);
    CHECK(page.find("chart-title\">" + std::string(title) + "<") > begin);
  }
  CHECK(page.find("chart-title\">Loss<") < begin);
  CHECK(count_of(page, "viewBox=\"0 0 530 ") == 4);
}

TEST_CASE("scales of residual blocks have a curve each", "[report]") {
  ReportInput input = float_run();
  CHECK(!has(render_report(input), "Gradient scales"));
  const auto curves = [&] { return count_of(render_report(input), "<polyline") + count_of(render_report(input), "<path"); };
  const std::size_t before = curves();
  for (json& line : input.metrics) {
    if (line.value("event", "") == "step") line["block_scales"] = json::array({8192, 16384.5, 9000});
  }
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(has(page, "Gradient scales"));
  CHECK(has(page, "block 2"));
  CHECK(curves() >= before + 2 * 3);  // for broad and for narrow screens
  // Where there are many blocks, only the first and the last are named.
  for (json& line : input.metrics) {
    if (line.value("event", "") == "step") line["block_scales"] = std::vector<double>(128, 8192);
  }
  CHECK(has(render_report(input), "block 127"));
  CHECK(!has(render_report(input), "block 64"));
  for (const json& odd : {json("x"), json::array({"x", nullptr})}) {
    for (json& line : input.metrics) {
      if (line.value("event", "") == "step") line["block_scales"] = odd;
    }
    require_self_contained(render_report(input));
  }
}

// At 390 pixels charts had letters of four pixels or had to be scrolled sideways, like tables.
TEST_CASE("every chart is drawn for narrow screens too, and tables become lists there", "[report]") {
  for (const ReportInput& input : {full_run(), float_run()}) {
    const std::string page = render_report(input);
    require_self_contained(page);
    const std::size_t charts = count_of(page, "<div class=\"chart\">");
    CHECK(charts >= 5);
    CHECK(count_of(page, "<div class=\"broad\"><svg") == charts);
    CHECK(count_of(page, "<div class=\"narrow\"><svg") == charts);
    CHECK(count_of(page, "viewBox=\"0 0 350 ") == charts);
    CHECK(count_of(page, "<svg") == 2 * charts);
    CHECK(count_of(page, "<td") == count_of(page, "data-heading=\""));
    CHECK(!has(page, "min-width:720px"));
  }
}

namespace {

// full_run() after another one whose first stage it reuses, curves and all.
ReportInput reusing_run() {
  ReportInput input = full_run();
  std::vector<json> reused;
  for (int epoch = 1; epoch <= 2; ++epoch) {
    reused.push_back(epoch_event("layer1", epoch, 20.0 * epoch));
    reused.back()["reused"] = true;
    reused.back()["heads"][0]["validation_accuracy"] = 0.606;
  }
  input.metrics.insert(input.metrics.begin() + 1, reused.begin(), reused.end());
  input.metrics[3] = json::parse(R"({"event":"stage","stage":"layer1","seconds":0,"images":0,"reused":true,
    "validation_accuracy":0.636,"validation_accuracy_plain":0.606,
    "trained":{"run":"/runs/<zero>","time":"2026-11-19T10:00:00Z","seconds":42.0,"images":90000}})");
  for (json& line : input.metrics) {
    if (line["event"] == "stage" && line["stage"] != "layer1") line["images"] = 180000;
  }
  json& result = input.metrics.back();
  result["views"] = {{"mirror", true}, {"shift", 0}};
  result["ensemble"] = {"layer2", "layer3"};
  result["validation_accuracy_plain"] = 0.812;
  result["test_accuracy_plain"] = 0.801;
  return input;
}

}  // namespace

// The report of a run that reused all its stages had empty curves.
TEST_CASE("curves of reused stages are drawn and marked", "[report]") {
  const std::string page = render_report(reusing_run());
  require_self_contained(page);
  CHECK(has(page, "layer1 (reused)"));
  CHECK(has(page, "class=\"band-marked"));
  CHECK(has(page, "Taken from the cache, not trained by this run: layer1 by /runs/&lt;zero&gt; on 2026-11-19T10:00:00Z."));
  CHECK(has(page, "training time, reused stages included (min)"));
  CHECK(has(page, "without 42 s of training in reused stages"));
  CHECK(has(page, "360 k"));
  CHECK(has(page, "and 90.0 k by the runs of reused stages"));
  // Stages follow one another: the reused one ends at 40 s, and what this run had at 400 s stands at 440.
  const std::string time = "training time, reused stages included (min) ";
  CHECK(shows_value(page, time + "0.6667", "layer1, validation: 60.6"));
  CHECK(has(page, "<title>" + time + "0.6667, layer1 (reused)\n"));
  CHECK(has(page, "<title>" + time + "7.333"));
  const std::string fresh = render_report(full_run());
  CHECK(!has(fresh, "class=\"band-marked"));
  CHECK(has(fresh, "(min) 6.667"));
}

// One page said 79.40%, 76.6%, 63.60% and 60.60% without saying what each was of.
TEST_CASE("accuracies with and without mirror images are both shown, and told apart", "[report]") {
  const std::string page = render_report(reusing_run());
  CHECK(has(page, "8,000 images, with mirror images; 80.10% without; ensemble of 2 layers"));
  CHECK(has(page, "5,000 images, with mirror images; 81.20% without"));
  ReportInput until_sure = reusing_run();
  until_sure.metrics.back()["views"]["sure"] = 0.7;
  CHECK(has(render_report(until_sure),
            "8,000 images, with mirror images until a class has a probability of 0.7; 80.10% without"));
  for (const char* cell : {"data-heading=\"validation accuracy\">60.60%", "data-heading=\"with mirror images\">63.60%"}) {
    INFO(cell);
    CHECK(has(page, cell));
  }
  // Tables of stages and of layers agree on the image as it is.
  CHECK(count_of(page, "data-heading=\"validation accuracy\">60.60%") == 2);
}

TEST_CASE("what flips would do is drawn, and what is no study of them is not") {
  ReportInput input = full_run();
  input.flips = json::parse(R"({"images":512,"others":512,"others_are":"validation","layers":[{"layer":"layer<1>","weights":900,
    "moves":900,"lower":0.44,"neutral":0,"loss":1.4,"others_loss":1.5,"together":[
    {"flips":1,"predicted":-0.001,"realised":-0.001,"on_others":-0.0005},
    {"flips":100,"predicted":-0.07,"realised":0.01,"on_others":0.03}]}, 7, {"layer":"bare"}]})");
  const std::string page = render_report(input);
  require_self_contained(page);
  CHECK(has(page, "id=\"flips\""));
  CHECK(has(page, "layer&lt;1&gt;: 44.00% of 900 flips lower the loss by themselves"));
  CHECK(has(page, "on validation images"));
  for (const char* none : {"null", "[]", "{}", R"({"layers":3})", R"({"layers":[1,2]})"}) {
    INFO(none);
    input.flips = json::parse(none);
    CHECK_FALSE(has(render_report(input), "id=\"flips\""));
  }
  input.metrics[2]["layers"][0]["lower_share"] = 0.4;
  CHECK(has(render_report(input), "Flips that would lower a minibatch"));
  CHECK_FALSE(has(render_report(full_run()), "Flips that would lower a minibatch"));
}
