// Speed of data build (byte tokenizer), compared with a plain copy of the same text, and of reading
// batches.
//   bench_data_io [FOLDER] [MEGABYTES]
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "common/base/check.h"
#include "trainer/data/build.h"
#include "trainer/data/dataset.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;
namespace fs = std::filesystem;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  const fs::path folder =
      fs::path(argc > 1 ? argv[1] : "/tmp") / fmt::format("sortie-bench-data-{}", ::getpid());
  const std::size_t megabytes = argc > 2 ? static_cast<std::size_t>(std::atoll(argv[2])) : 1000;
  fs::create_directories(folder / "text");
  std::string text;
  while (text.size() < 1'000'000) text += fmt::format("line {} of the text\n", text.size());
  for (std::size_t i = 0; i < megabytes; ++i)
    std::ofstream(folder / "text" / fmt::format("{:06}", i))
        .write(text.data(), static_cast<std::streamsize>(text.size()));
  const double bytes = static_cast<double>(text.size() * megabytes);

  const double copy = seconds_of([&] {
    for (const auto& entry : fs::directory_iterator(folder / "text"))
      fs::copy_file(entry.path(), folder / "copy", fs::copy_options::overwrite_existing);
  });
  BuildOptions options{.corpus = {.inputs = {folder / "text"}},
                       .output = (folder / "tokens").string()};
  const double build = seconds_of([&] {
    const auto built = build_token_files(options, *make_byte_tokenizer());
    SORTIE_CHECK(built.has_value(), "{}", built.error().message);
  });
  fmt::print(
      "data build, {:.0f} MB: {:.2f} s, {:.2f} GB/s (hashed, synced); plain copy {:.2f} s, "
      "{:.2f} GB/s; ratio {:.2f}\n",
      bytes * 1e-6, build, bytes / build * 1e-9, copy, bytes / copy * 1e-9, build / copy);

  for (const std::int64_t length : {256, 2048}) {
    auto dataset = Dataset::open({.prefixes = {options.output}, .sequence_length = length});
    SORTIE_CHECK(dataset.has_value());
    std::vector<std::int32_t> sample(static_cast<std::size_t>(length) + 1);
    constexpr int kBatches = 2000;
    double seconds = 0;
    const auto read = [&](std::uint64_t number) {
      SORTIE_CHECK((*dataset)->read_sample(number, sample).has_value());
    };
    const double first = seconds_of([&] { read(0); });
    seconds = seconds_of([&] {
      for (std::uint64_t i = 0; i < 8 * kBatches; ++i) read(i);
    });
    fmt::print("batches of 8 x {}: {:.1f} M tokens/s; first sample of an epoch {:.2f} ms\n", length,
               kBatches * 8 * static_cast<double>(length) / seconds * 1e-6, first * 1e3);
  }
  fs::remove_all(folder);
}
