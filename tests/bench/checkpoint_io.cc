// Bytes and time of a checkpoint: saved (written, hashed, synced, committed), verified and loaded,
// each compared with plain reads and writes of as many bytes on the same disk.
//   bench_checkpoint_io [FOLDER] [MILLION_PARAMETERS]
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/fd.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/shard_file.h"
#include "trainer/checkpoint/store.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;
namespace fs = std::filesystem;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The baseline: writes the same bytes with write and fsync, nothing else.
void plain_write(const fs::path& path, std::span<const std::byte> bytes, int times) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  for (int i = 0; i < times; ++i)
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const ssize_t count = ::write(file.get(), rest.data(), rest.size());
      SORTIE_CHECK(count > 0, "write: {}", std::strerror(errno));
      rest = rest.subspan(static_cast<std::size_t>(count));
    }
  SORTIE_CHECK(::fsync(file.get()) == 0);
}

void plain_read(const fs::path& path, std::span<std::byte> buffer, int times) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  for (int i = 0; i < times; ++i)
    for (std::span<std::byte> rest = buffer; !rest.empty();) {
      const ssize_t count = ::read(file.get(), rest.data(), rest.size());
      SORTIE_CHECK(count > 0, "read: {}", std::strerror(errno));
      rest = rest.subspan(static_cast<std::size_t>(count));
    }
}

void print_row(std::string_view what, double bytes, double ours, double plain) {
  fmt::print("{:<34} {:7.2f} s {:7.2f} GB/s   plain {:7.2f} s {:7.2f} GB/s   ratio {:.2f}\n", what,
             ours, bytes / ours * 1e-9, plain, bytes / plain * 1e-9, ours / plain);
}

}  // namespace

int main(int argc, char** argv) {
  const fs::path folder =
      fs::path(argc > 1 ? argv[1] : "/tmp") / fmt::format("sortie-bench-checkpoint-{}", ::getpid());
  const std::int64_t parameters = (argc > 2 ? std::atoll(argv[2]) : 124) * 1'000'000;
  constexpr int kStates = 3;  // master weights and both moments, f32
  std::vector<float> values(static_cast<std::size_t>(parameters), 0.5f);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1'000'003);
  const auto data = std::as_bytes(std::span(values));
  const double bytes = static_cast<double>(data.size()) * kStates;
  fs::create_directories(folder);

  double plain_save = 1e9, plain_load = 1e9, save = 1e9, verify = 1e9, load = 1e9;
  std::vector<float> loaded(values.size());
  const Dims shape = {parameters};
  for (int round = 0; round < 3; ++round) {
    plain_save =
        std::min(plain_save, seconds_of([&] { plain_write(folder / "plain", data, kStates); }));
    plain_load =
        std::min(plain_load, seconds_of([&] {
                   plain_read(folder / "plain", std::as_writable_bytes(std::span(loaded)), kStates);
                 }));
    fs::remove(folder / "plain");
    fs::path saved;
    save =
        std::min(save, seconds_of([&] {
                   auto store = CheckpointStore::open(folder / "save", {"bench"});
                   SORTIE_CHECK(store.has_value(), "{}", store.error().message);
                   const auto at = store->begin(round, data.size() * kStates);
                   SORTIE_CHECK(at.has_value(), "{}", at.error().message);
                   std::vector<PieceToWrite> pieces;
                   for (const char* name : {"weights", "exp_avg", "exp_avg_sq"})
                     pieces.push_back({name, StorageType::f32, shape, Piece::whole(shape), data});
                   const auto shard = write_shard(*at, 0, 1, pieces);
                   SORTIE_CHECK(shard.has_value(), "{}", shard.error().message);
                   const auto committed = store->commit(*at, {.step = round}, {*shard});
                   SORTIE_CHECK(committed.has_value(), "{}", committed.error().message);
                   saved = *committed;
                   SORTIE_CHECK(store->retain(round, 1).has_value());
                 }));
    verify = std::min(verify, seconds_of([&] {
                        SORTIE_CHECK(check_checkpoint(saved, CheckDepth::hashes).has_value());
                      }));
    load = std::min(load, seconds_of([&] {
                      auto reader = CheckpointReader::open(saved, CheckDepth::sizes);
                      for (const char* name : {"weights", "exp_avg", "exp_avg_sq"})
                        SORTIE_CHECK(reader
                                         ->read(name, StorageType::f32, shape, Piece::whole(shape),
                                                std::as_writable_bytes(std::span(loaded)))
                                         .has_value());
                    }));
    SORTIE_CHECK(loaded == values);
  }
  fmt::print("{} M parameters, {:.0f} MB, best of 3, page cache warm for reads, on {}\n",
             parameters / 1'000'000, bytes * 1e-6, folder.parent_path().string());
  print_row("save (hash, fsync, commit)", bytes, save, plain_save);
  print_row("verify (every byte hashed)", bytes, verify, plain_load);
  print_row("load (mapped, copied)", bytes, load, plain_load);
  fs::remove_all(folder);
}
