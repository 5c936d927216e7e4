// Data sets as tensors.
#include "data/dataset_file.h"

#include "core/error.h"
#include "data/synthetic.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using bitloom::test::message_of;

namespace {

DataSplits some_images() {
  DataSplits splits;
  splits.train = make_synthetic(1, 30);
  splits.validation = split_validation(splits.train, 5, 1);
  splits.test = make_synthetic(1, 7, synthetic_test_first);
  return splits;
}

}  // namespace

TEST_CASE("data sets come back as they were", "[data]") {
  const DataSplits splits = some_images();
  const std::vector<std::byte> bytes = to_tensors(splits).serialize();
  const DataSplits back = from_tensors(TensorFile::parse(bytes, "test", Checksum::required));
  CHECK(content_hash(back.train) == content_hash(splits.train));
  CHECK(content_hash(back.validation) == content_hash(splits.validation));
  CHECK(content_hash(back.test) == content_hash(splits.test));
  CHECK(back.train.name == splits.train.name);
  CHECK(back.validation.size() == 5);
  DataSplits none = splits;
  none.validation = {};
  none.validation.shape = splits.train.shape;
  CHECK(from_tensors(to_tensors(none)).validation.size() == 0);
}

TEST_CASE("damaged data sets are refused", "[data]") {
  TensorFile file = to_tensors(some_images());
  TensorFile broken = file;
  broken.metadata.begin()->second = "{";
  CHECK(message_of(ErrorKind::data, [&] { from_tensors(broken); }).starts_with("images: their description is damaged"));
  broken = file;
  broken.tensors.erase("train.pixels");
  CHECK(message_of(ErrorKind::data, [&] { from_tensors(broken); }).find("train.pixels") != std::string::npos);
  broken = file;
  broken.put("test.labels", {7}, std::vector<std::uint16_t>(7, 10));
  CHECK(message_of(ErrorKind::data, [&] { from_tensors(broken); }) == "test: a label is beyond the 10 classes");
}
