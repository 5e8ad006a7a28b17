// TensorBoard event files, byte for byte. That the TensorBoard package reads a run's file is
// checked by tests/e2e (training.tensorboard_reads_the_events).
#include "launcher/trackers/tensorboard.h"
#include "common/base/hex.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;

// Written by another program from the format's description: u64 length, masked CRC32C of it, Event,
// masked CRC32C of that.
constexpr const char* kHeader =
    "1800000000000000a37f4b220900002040fc54d9411a0d627261696e2e4576656e743a322b353110";
constexpr const char* kScalar =
    "2100000000000000017becf60900004040fc54d94110ac022a130a110a0a747261696e2f6c6f7373150000a03f"
    "6718438f";

fs::path only_file_in(const fs::path& folder) {
  fs::path found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    CHECK(found.empty());
    found = entry.path();
  }
  return found;
}

/// Files may grow to `bytes` while this lives; a write beyond gives what fits, then EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit lower = old_;
    lower.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int) = SIG_DFL;
};

TEST_CASE("the records of an event file") {
  CHECK(hex(tensorboard_header(1700000000.5)) == kHeader);
  CHECK(hex(tensorboard_scalar(1700000001.0, 300, "train/loss", 1.25f)) == kScalar);
}

TEST_CASE("an event file is the header and then the scalars") {
  const test::ScopedTempDir dir;
  auto writer = TensorBoardWriter::create(dir / "tensorboard", 1700000000.5);
  REQUIRE(writer);
  REQUIRE(writer->add_scalar(1700000001.0, 300, "train/loss", 1.25));
  const fs::path file = only_file_in(dir / "tensorboard");
  CHECK(file.filename().string().starts_with("events.out.tfevents.1700000000."));
  CHECK(hex(test::read_text(file)) == std::string(kHeader) + kScalar);
}

TEST_CASE("a record that does not fit on the disk leaves the file readable") {
  const test::ScopedTempDir dir;
  auto writer = TensorBoardWriter::create(dir.path(), 1700000000.5);
  REQUIRE(writer);
  {
    const FileSizeLimit limit(60);  // the header is 40 bytes, the record 49
    const auto written = writer->add_scalar(1700000001.0, 300, "train/loss", 1.25);
    REQUIRE_FALSE(written);
    CHECK(written.error().code == ErrorCode::io);
    CHECK(written.error().message.find("events.out.tfevents") != std::string::npos);
    CHECK(written.error().message.find("Success") == std::string::npos);
  }
  CHECK(hex(test::read_text(only_file_in(dir.path()))) == kHeader);
  REQUIRE(writer->add_scalar(1700000001.0, 300, "train/loss", 1.25));
  CHECK(hex(test::read_text(only_file_in(dir.path()))) == std::string(kHeader) + kScalar);
}

TEST_CASE("a folder that can not be made is an error that names the file") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "file", "");
  const auto writer = TensorBoardWriter::create(dir / "file/tensorboard", 1.0);
  REQUIRE_FALSE(writer);
  CHECK(writer.error().message.starts_with(dir.str("file/tensorboard/events.out.tfevents.")));
}

}  // namespace
}  // namespace sortie::launcher
