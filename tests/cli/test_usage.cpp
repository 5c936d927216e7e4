// Command lines that are accepted, and messages about the rest.
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/commands.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom::test;

TEST_CASE("wrong command lines end with 2 and say what was expected", "[usage]") {
  const TempDir folder;
  const std::vector<std::pair<std::string, std::string>> cases{
      {"trian binary", "unknown command 'trian'; did you mean 'train'?"},
      {"train", "train: expected what: binary, clip, cnn, dalle, dvae, gpt\n"},
      {"plan binary --net tiny", "plan: unknown kind 'binary'; known: cnn, dalle, gpt, shape; without a kind: a binary net"},
      {"train binry", "train: unknown kind 'binry'; did you mean 'binary'?"},
      {"data synt", "did you mean 'synth'?"},
      {"train binary --data synth --bacth 5", "unknown option --bacth; did you mean 'batch'?"},
      {"train binary --data synth --batc 5", "unknown option --batc; did you mean 'batch'?"},
      {"train binary --data synth --batch", "required argument for option '--batch' is missing"},
      {"train binary --data synth --batch ten", "--batch: 'ten' is not a number; expected a whole number from 1"},
      {"train binary --data synth --batch +1", "--batch: '+1' is not a number"},
      {"train binary --data synth --augment none,flip", "augmentation 'none' among others; expected it alone"},
      {"train binary --data synth --batch 1.5", "--batch: '1.5' is not a whole number; expected a whole number from 1"},
      {"train binary --data synth --batch 99999999999999999999", "--batch: '99999999999999999999' is out of range"},
      {"train binary --data synth --batch 0", "--batch: '0' is out of range"},
      {"train binary --data synth --batch 16 --batch 0", "--batch: '0' is out of range"},
      {"train binary --data synth --lr 0.1", "unknown option --lr; did you mean 'learning-rate'?"},
      {"train binary --data synth --learning_rate 0.1", "did you mean 'learning-rate'?"},
      {"train gpt --data synth --batch-size 8", "unknown option --batch-size; did you mean 'batch'?"},
      {"train binary --data synth --threads 4", "unknown option --threads; the environment variable OMP_NUM_THREADS"},
      {"train binary --data synth -j 4", "OMP_NUM_THREADS"},
      {"train binary --data synth --np 4", "`mpirun -n N bitloom ...` runs N processes"},
      {"train binary --data synth --telepathy", "; `bitloom train binary --help-all` lists the options"},
      {"data sheet synth --telepathy", "; `bitloom data sheet --help` lists the options"},
      {"hlp", "did you mean 'help'?"},
      {"train binary --data synth --batch 8 --batch-per-rank 8", "exclude each other"},
      {"train binary --data synth --exchange sparse --threshold 0 --value-bits 8",
       "--value-bits: 8 has no effect; it needs another --threshold than 0"},
      {"train binary --data synth --learning-rate 0", "--learning-rate: '0' is out of range; expected a number above 0"},
      {"train binary --data synth --label-smoothing nan", "--label-smoothing: 'nan' is not a number; expected a number from 0"},
      {"train binary --data synth --rule topp", "--rule: unknown value 'topp'; did you mean 'topk'?"},
      {"train binary --data synth --cache-limit 8GB", "--cache-limit: '8GB' is not a size"},
      {"train binary --data synth --augment crp4", "did you mean 'crop'?"},
      {"train binary --data synth --net tinny", "unknown net 'tinny'; did you mean 'tiny'?"},
      {"train binary --data synth --net ./none.json", "none.json"},
      {"train binary --data synth --set layer9.width=5", "--set: 'layer9.width': unknown name 'layer9'; did you mean 'layer"},
      {"train binary --data synth --set layer1.widht=5", "did you mean 'width'?"},
      {"train binary --data synth --set layer1.width", "is not KEY=VALUE"},
      {"train binary --data synth --search layer1.width=64,,32", "has an empty value"},
      {"train binary --data synth --search layer2.width=64,64", "has the value '64' twice"},
      {"train binary --data synth --search layer2.smallest_offset=0.1,0.10", "are the same net"},
      {"train binary --data synth --search layer2.width=64 --search layer2.width=32", "'layer2.width' is searched twice"},
      {"train binary --data synth --compression 300", "--compression: 300 has no effect; it needs --exchange sparse"},
      {"train binary --data synth --bytes-per-update 1KiB",
       "--bytes-per-update: 1KiB has no effect; it needs --exchange sparse"},
      {"train binary --data synth --staleness 2", "--staleness: 2 has no effect; it needs --exchange sparse"},
      {"train binary --data synth --exchange sparse --late drop", "--late: drop has no effect; it needs --quorum"},
      {"train binary --data synth --exchange sparse --last-messages 1", "has no effect; it needs --compression"},
      {"train binary --data synth --head-urgency 3", "--head-urgency: 3 has no effect; it needs --exchange sparse"},
      {"train binary --data synth --exchange sparse --threshold-urgency 0", "--threshold-urgency: '0' is out of range"},
      {"train binary --data synth --search-rounds 2", "--search-rounds: 2 has no effect; it needs --search"},
      {"train binary --data synth --spread", "--spread has no effect; it needs --search"},
      {"train binary --data synth --rule topk --learning-rate 0.5", "it needs --rule accumulate"},
      {"train binary --data synth --code-target 4", "--code-target: this option is gone since version 0.1.0 of 2026-11-24"},
      {"train binary --data synth --flip-threshold 0.1",
       "--flip-threshold: this option is gone since version 0.1.0 of 2026-11-27"},
      {"train binary --data synth --rule bop", "--rule: unknown value 'bop'"},
      {"train binary --data synth --set layer1.code_target=4", "unknown key 'code_target'"},
      {"train binary --data synth --flip-rate 0.5", "--flip-rate: 0.5 has no effect; it needs --rule stochastic"},
      {"train binary --data synth --freeze-weights --learning-rate 0.5",
       "--learning-rate: 0.5 has no effect with --freeze-weights"},
      {"train binary --data synth --freeze-weights --rule topk --flip-share 0.5",
       "--flip-share: 0.5 has no effect with --freeze-weights"},
      {"train binary --data synth --teacher x --teacher-share 1 --label-smoothing 0.1",
       "--label-smoothing: 0.1 has no effect, since labels have no share in heads' targets; expected a --teacher-share below "
       "1"},
      {"train binary --data synth --dead-zone 0.1",
       "--dead-zone: 0.1 has no effect, since no layer of net 'tiny' is ternary; expected --set layer1.weights=ternary"},
      {"train binary --data synth --dead-zone 0.1 --search layer1.width=32,64", "--dead-zone: 0.1 has no effect"},
      {"plan --data synth --dead-zone 0.1", "--dead-zone: 0.1 has no effect"},
      {"plan --data synth --net cifar-deep --learning-rate 0.5",
       "--learning-rate: 0.5 has no effect, since the stages of net 'cifar-deep' have their own"},
      {"simulate --data synth --net cifar-deep --learning-rate 0.5", "--learning-rate: 0.5 has no effect"},
      {"simulate --data synth --augment none --augment-copies 2", "--augment-copies: 2 has no effect"},
      {"train binary --data synth --augment none --augment-copies 2", "it needs another --augment than none"},
      {"train binary --data synth --cache none --cache-limit 1GiB", "it needs another --cache than none"},
      {"train binary --data synth --image-size 64", "--image-size: 64 has no effect"},
      {"train binary --data synth --max-train 500 --batch 100000",
       "--batch: 100000 images per update; expected at most the 450"},
      {"train binary --data synth --max-train 1 --validation 0",
       "--max-train: 1 images to train on; expected at least one of each"},
      {"plan --data synth --link 10Mbit", "--link: '10Mbit'; expected a rate and a latency such as 100Mbit/20ms"},
      {"plan --data synth --exchange dense", "--exchange: dense; expected sparse, the only one here"},
      {"plan --data synth --quorum 0.5", "unknown option --quorum"},
      {"simulate --data synth --late drop", "unknown option --late"},
      {"plan gpt --dropout 0.1", "unknown option --dropout"},
      {"plan --data synth --straggler-factor 5", "--straggler-factor: 5 has no effect; it needs --stragglers"},
      {"sample model --temperature 0 --seed 5", "--seed: 5 has no effect; it needs another --temperature than 0"},
      {"train binary --data synth --split-seed 5 --validation 0",
       "--split-seed: 5 has no effect; it needs another --validation"},
      {"train dvae --data x --split-seed 5 --validation 0", "--split-seed: 5 has no effect; it needs another --validation"},
      {"train cnn --data synth --epochs 3 --steps 1", "--epochs: 3 has no effect; it needs --steps 0"},
      {"data info synth --image-size 48", "--image-size: 48 has no effect; the images of synth are 32 x 32"},
      {"data sheet synth --image-size 48 --out x.png", "--image-size: 48 has no effect; the images of synth are 32 x 32"},
      {"data sheet synth --out x.jpg", "--out: x.jpg; expected a name in .png: pictures are PNG files"},
      {"launch --agent x -- train binary --out x", "--agent: x has no effect; it needs --hostfile"},
      {"launch --patience 5 -- train binary --out x", "--patience: 5 has no effect; it needs --hostfile"},
      {"launch --local 2 -- train gpt --data x --out y --micro-batch 0", "--micro-batch: '0'; expected auto or a divisor"},
      {"launch --local 2 -- train gpt --data x --out y --micro-batch -1", "--micro-batch: '-1'; expected auto or a divisor"},
      {"launch --local 2 -- train cnn --data x --out y --micro-batch 0", "--micro-batch: '0'; expected auto or a divisor"},
      {"launch --local 2 -- train dalle --data x --out y --micro-batch 0", "--micro-batch: '0'; expected auto or a divisor"},
      {"launch --local 2 -- train clip --data x --out y --micro-batch 0", "--micro-batch: '0'; expected auto or a divisor"},
      {"train gpt --data x --halve-at 10 --learning-rate-floor 0.5",
       "--learning-rate-floor: 0.5 has no effect; it needs no --halve-at"},
      {"train gpt --data x --exchange local --through y --fan-in 3", "--fan-in: 3 has no effect; it needs no --through"},
      {"train gpt --data x --compress-start warm", "--compress-start: warm has no effect; it needs --compress-rank"},
      {"train gpt --data x --compress-errors 1-6-9", "--compress-errors: 1-6-9 has no effect; it needs --compress-rank"},
      {"train gpt --data x --compress-rank 4 --compress-start warmed",
       "--compress-start: unknown value 'warmed'; did you mean 'warm'?"},
      {"train dalle --data x --dvae y --tokenizer bytes --merge-dropout 0.2",
       "--merge-dropout: 0.2 has no effect; it needs another --tokenizer than bytes"},
      {"sample model --temperature 0 --top-k 5", "--top-k: 5 has no effect; it needs another --temperature than 0"},
      {"train binary --data sinth:1", "unknown kind of data set 'sinth'"},
      {"train binary --data synth --validation 99999", "--validation: 99999 images would be held back"},
      {"train binary --data synth extra", "unexpected argument 'extra'"},
      {"train binary", "--data: missing"},
      {"train binary --resume", "--resume: needs --out"},
      {"train binary --resume --out nowhere", "--resume: there is no run in nowhere"},
      {"train binary --data synth --config none.ini", "--config: cannot read 'none.ini'"},
      {"eval", "missing MODEL|RUN"},
      {"predict model", "missing MODEL|RUN or PICTURE"},
      {"inspect tinny", "did you mean 'tiny'?"},
      {"inspect airbench9", "did you mean 'airbench94'?"},
      {"inspect tiny --image-size 32x32", "--image-size: '32x32' is not"},
      {"data synth", "--out: missing"},
      {"info --measured", "did you mean 'measure'?"},
      {"tokenizer", "tokenizer: expected what: train, info"},
      {"tokenizer trian", "did you mean 'train'?"},
      {"tokenizer train", "--input: missing; expected the name of a text file"},
      {"tokenizer train --input none.txt", "--out: missing"},
      {"tokenizer train --input a.txt --vocabulary 0 --out x", "--vocabulary: '0' is out of range"},
      {"tokenizer info", "missing SPEC"},
      {"tokenizer info byts", "tokenizer 'byts': there is no such file or folder; expected bytes"},
      {"tokenizer info bytes --merge-dropout 0.1", "merge dropout 0.1 does not go with a tokenizer of kind bytes"},
      {"tokenizer info bytes --merge-dropout 2", "--merge-dropout: '2' is out of range; expected a number from 0"},
      {"data text --tokenizer bytes --out x", "--input: missing"},
      {"data text --input a.txt --out x", "--tokenizer: missing; expected bytes"},
      {"data text --input a.txt --tokenizer bytes", "--out: missing; expected a folder"},
      {"data text --input a.txt --tokenizer bytes --out .", "--out: . is there already and not an empty folder; --force"},
      {"data text --input a.txt --tokenizer bytes --out x --validation 29", "--validation: '29' is no share; expected"},
      {"data text --input a.txt --tokenizer bytes --out x --validation 0:1", "--validation: '0:1' is no share"},
      {"data text --input a.txt --tokenizer bytes --out x --validation one", "--validation: 'one' is no share"},
      {"data text more.txt --input a.txt --tokenizer bytes --out x", "unexpected argument 'more.txt'"},
      {"data text --tokenizer bytes --out x --input", "required argument for option '--input' is missing"},
      {"data clean --input a.txt", "--out: missing; expected the name of a .jsonl file"},
      {"data clean --input a.txt --out x.txt", "--out: 'x.txt': expected the name of a .jsonl file"},
      {"data clean --input a.txt --out x.jsonl --jaccard 0", "--jaccard: '0' is out of range; expected a number above 0"},
      {"data clean --input a.txt --out x.jsonl --jaccard 1.1", "--jaccard: '1.1' is out of range"},
      {"data pairs", "missing SPEC"},
      {"data pairs a b", "unexpected argument 'b'"},
      {"data pairs a --columns 3", "--columns: 3 has no effect; it needs --sheet"},
      {"data pairs a --max-aspect -1", "--max-aspect: '-1' is out of range"},
      {"data pairs . --max-aspect 0.5", "--max-aspect: 0.5; expected at least 1, or 0 for no limit"},
      {"data synth-pairs", "--out: missing; expected a folder"},
      {"data synth-pairs --out x --count 0", "--count: '0' is out of range"},
      {"data synth-pairs --out x --side 15", "--side: '15' is out of range; expected a whole number from 16 to 512"},
      {"data synth-pairs --out x --hold-out 0.5",
       "--hold-out: '0.5' is out of range; expected a number from 0 and at most 0.4"},
      {"data synth-pairs --out x --hold-out 0 --part held-out", "--hold-out: 0; no combinations are held out"},
      {"data synth-pairs --out x --part test", "--part: unknown value 'test'"},
      {"fewbit --function gleu", "--function: 'gleu'; did you mean 'gelu'?"},
      {"fewbit --bits 9", "--bits: '9' is out of range; expected a whole number from 1 to 8"},
      {"fewbit --interval 5", "--interval: '5' is not LOW,HIGH"},
      {"fewbit --interval 5,-5", "--interval: '5,-5' is not LOW,HIGH"},
      {"fewbit --interval -10,inf", "--interval: '-10,inf' is not LOW,HIGH"},
      {"fewbit --weight normall", "--weight: unknown value 'normall'; did you mean 'normal'?"},
      {"fewbit --weight normal --interval 50,60", "--weight: normal weight vanishes on [50, 60]"},
      {"fewbit --bits 8 --points 255", "--points: '255' is fewer than the 256 levels of 8 bits"},
      {"fewbit --out picture.pdf", "--out: 'picture.pdf' ends in neither .svg nor .png"}};
  for (const auto& [line, message] : cases) {
    INFO(line);
    const Outcome outcome = run_program(folder.path(), words(line));
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    INFO(outcome.err);
    CHECK(outcome.err.starts_with("bitloom: "));
    CHECK(has(outcome.err, message));
  }
  CHECK(run_program(folder.path(), {}).code == 2);
}

TEST_CASE("missing and damaged files end with 3", "[usage]") {
  const TempDir folder;
  write_file(folder / "broken.safetensors", "this is no model");
  const std::vector<std::pair<std::string, std::string>> cases{
      {"train binary --data nowhere", "no such folder"},
      {"data info .", "no data set there"},
      {"eval nowhere --data synth", "nowhere: there is no such model file or run folder"},
      {"inspect .", "the folder holds no run"},
      {"inspect broken.safetensors", "broken.safetensors"},
      {"report nowhere", "nowhere: there is no such run folder"},
      {"report .", "the folder holds no run"}};
  for (const auto& [line, message] : cases) {
    INFO(line);
    const Outcome outcome = run_program(folder.path(), words(line));
    CHECK(outcome.code == 3);
    INFO(outcome.err);
    CHECK(has(outcome.err, message));
  }
}

TEST_CASE("a folder that cannot be made ends with 5", "[usage]") {
  const TempDir folder;
  write_file(folder / "file", "");
  const Outcome outcome =
      run_program(folder.path(), words("train binary --data synth --max-train 50 --max-test 10 --out file/below"));
  CHECK(outcome.code == 5);
  CHECK(has(outcome.err, "--out: file/below cannot be created"));
}

TEST_CASE("images that would move out of sight are refused before the training", "[usage]") {
  const TempDir folder;
  const Outcome outcome = run_program(
      folder.path(), words("train binary --data synth --net tiny --max-train 200 --max-test 20 --set net.shift=99 --out run"));
  CHECK(outcome.code == 2);
  CHECK(has(outcome.err, "net.shift: 99 pixels; expected less than the images have, 32 x 32"));
  CHECK(!has(outcome.out, "layer1"));
}

TEST_CASE("a name that the system refuses ends with 5 and is named", "[usage]") {
  const TempDir folder;
  const std::string name(300, 'x');
  const Outcome outcome = run_program(folder.path(), {"eval", name});
  CHECK(outcome.code == 5);
  CHECK(has(outcome.err, "bitloom: " + name + ": File name too long"));
}

TEST_CASE("the stand-alone commands work", "[usage]") {
  const TempDir folder;
  const Outcome info = run_program(folder.path(), {"info"});
  CHECK(info.code == 0);
  CHECK(has(info.out, "kernels in use"));
  CHECK(has(info.out, "\nGPUs  "));
  CHECK(has(info.out, (folder / "cache").string()));

  CHECK(run_program(folder.path(), words("data synth --out set --train 50 --test 20 --seed 3")).code == 0);
  CHECK(run_program(folder.path(), words("data synth --out set --train 50 --test 20 --seed 3")).code == 2);
  CHECK(run_program(folder.path(), words("data synth --out set --train 50 --test 20 --seed 3 --force")).code == 0);
  const Outcome set = run_program(folder.path(), words("data info set"));
  CHECK(set.code == 0);
  CHECK(has(set.out, "32 x 32 pixels, 3 colours, 10 classes"));
  CHECK(has(set.out, "train: 50 images"));
  CHECK(has(set.out, "test: 20 images"));
  CHECK(run_program(folder.path(), words("data sheet set --out sheet.png --columns 4")).code == 0);
  CHECK(read_file(folder / "sheet.png").substr(1, 3) == "PNG");

  const Outcome net = run_program(folder.path(), words("inspect cifar-base"));
  CHECK(net.code == 0);
  CHECK(has(net.out, "8 x 8 x 1024"));
  for (const char* name : {"tiny", "cifar-small", "cifar-large", "essay"})
    CHECK(run_program(folder.path(), {"inspect", name}).code == 0);
}
