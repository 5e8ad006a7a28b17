// Tests of tensors whose bytes are produced while they are written, and of weights of types other
// than f32.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <thread>

#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/shard_file.h"
#include "trainer/checkpoint/store.h"
#include "trainer/checkpoint/weight_types.h"
#include "trainer/tensor/dtype.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;

struct TemporaryFolder {
  fs::path path;
  TemporaryFolder() {
    std::string name = fs::temp_directory_path() / "sortie-weights-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~TemporaryFolder() { fs::remove_all(path); }
};

std::byte byte_at(std::uint64_t index) {
  return static_cast<std::byte>(index * 2654435761u >> 13);
}
TensorData made(std::uint64_t size) {
  return {size, [](std::uint64_t begin, std::span<std::byte> out) {
            for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte_at(begin + i);
          }};
}

TEST_CASE("made bytes reach every reader whole and in order, beside those that are there") {
  std::vector<std::byte> there(1000, std::byte{7});
  const std::uint64_t sizes[] = {1, (std::uint64_t{8} << 20) + 3, std::uint64_t{50} << 20};
  std::vector<TensorData> pieces = {there, made(sizes[0]), made(sizes[1]),
                                    there, made(sizes[2]), made(0)};
  ByteStream stream(pieces, 2);
  std::vector<std::byte> seen[2];
  std::thread maker([&] { stream.make(); });
  std::thread other([&] {
    stream.read(1, [&](auto bytes) {
      seen[1].insert(seen[1].end(), bytes.begin(), bytes.end());
      return true;
    });
  });
  stream.read(0, [&](auto bytes) {
    seen[0].insert(seen[0].end(), bytes.begin(), bytes.end());
    return true;
  });
  maker.join();
  other.join();
  std::vector<std::byte> expected;
  for (const TensorData& piece : pieces)
    for (std::uint64_t i = 0; i < piece.size; ++i)
      expected.push_back(piece.make ? byte_at(i) : there[i]);
  CHECK(seen[0] == expected);
  CHECK(seen[1] == expected);
}

TEST_CASE("a stream that is stopped lets go of its maker and its readers") {
  ByteStream stream({made(std::uint64_t{1} << 40)}, 2);
  std::thread maker([&] { stream.make(); });
  std::thread other([&] { stream.read(1, [](auto) { return true; }); });
  int calls = 0;
  stream.read(0, [&](auto) { return ++calls < 3; });
  stream.stop();
  maker.join();
  other.join();
  CHECK(calls == 3);
}

TEST_CASE("a file that can not be written ends the threads that make and hash it") {
  TemporaryFolder folder;
  std::vector<TensorToWrite> tensors(1);
  tensors[0] = {.entry = {.name = "a", .type = StorageType::u8, .shape = {64 << 20}},
                .data = made(64 << 20)};
  CHECK_FALSE(write_safetensors(folder.path / "absent" / "file", std::move(tensors), {}));
}

TEST_CASE("weights widen exactly and narrow to nearest even, unaligned too") {
  const std::vector<float> values = {0.0f,    -0.0f, 1.0f, -2.5f,   1.0f + 1.0f / 256, 3.0f / 7,
                                     6.1e-5f, 1e-8f, 1e4f, 65504.f, INFINITY,          NAN};
  for (const StorageType type : {StorageType::f32, StorageType::bf16, StorageType::f16}) {
    CAPTURE(storage_name(type));
    std::vector<std::byte> bytes(values.size() * storage_bytes(type) + 1);
    const auto count = static_cast<std::int64_t>(values.size());
    narrow(type, values.data(), count, bytes.data() + 1);
    std::vector<float> back(values.size());
    widen(type, bytes.data() + 1, count, back.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      CAPTURE(values[i]);
      const float expected = type == StorageType::f32 ? values[i]
                             : type == StorageType::bf16
                                 ? static_cast<float>(bf16(values[i]))
                                 : static_cast<float>(static_cast<_Float16>(values[i]));
      if (std::isnan(expected))
        CHECK(std::isnan(back[i]));
      else
        CHECK(std::bit_cast<std::uint32_t>(back[i]) == std::bit_cast<std::uint32_t>(expected));
    }
  }
}

TEST_CASE("elements of one type are converted to another as by f32, however many there are") {
  std::vector<float> values;
  for (int i = 0; i < 2500; ++i) values.push_back(0.37f * static_cast<float>(i) - 300.0f);
  const StorageType types[] = {StorageType::f32, StorageType::bf16, StorageType::f16};
  const auto count = static_cast<std::int64_t>(values.size());
  for (const StorageType from : types)
    for (const StorageType to : types) {
      CAPTURE(std::string(storage_name(from)));
      CAPTURE(std::string(storage_name(to)));
      std::vector<std::byte> stored(values.size() * storage_bytes(from));
      narrow(from, values.data(), count, stored.data());
      std::vector<float> wide(values.size());
      widen(from, stored.data(), count, wide.data());
      std::vector<std::byte> expected(values.size() * storage_bytes(to) + 1), converted = expected;
      narrow(to, wide.data(), count, expected.data() + 1);
      convert(from, stored.data(), count, to, converted.data() + 1);
      CHECK(converted == expected);
    }
}

TEST_CASE("a bf16 tensor that two writers cut is read as f32; a view needs one place") {
  TemporaryFolder folder;
  const Dims shape = {5, 7};
  std::vector<bf16> values;
  for (int i = 0; i < 35; ++i) values.emplace_back(0.37f * static_cast<float>(i) - 3.0f);
  auto store = CheckpointStore::open(folder.path, {"test"});
  REQUIRE(store);
  const auto work = store->begin(1, 1000);
  REQUIRE(work);
  std::vector<ShardInfo> shards;
  for (std::size_t writer = 0; writer < 2; ++writer) {
    const Piece piece = Piece::interval(shape, writer == 0 ? 0 : 16, writer == 0 ? 16 : 35);
    const auto part = std::as_bytes(std::span(values).subspan(
        static_cast<std::size_t>(piece.begin), static_cast<std::size_t>(piece.elements())));
    const auto whole = std::as_bytes(std::span(values));
    std::vector<PieceToWrite> pieces = {{"cut", StorageType::bf16, shape, piece, part}};
    if (writer == 0)
      pieces.push_back({"whole", StorageType::bf16, shape, Piece::whole(shape), whole});
    const auto shard = write_shard(*work, writer, 2, pieces);
    REQUIRE(shard);
    shards.push_back(*shard);
  }
  Manifest manifest;
  manifest.step = 1;
  const auto path = store->commit(*work, std::move(manifest), shards);
  REQUIRE(path);
  auto reader = CheckpointReader::open(*path, CheckDepth::hashes);
  REQUIRE(reader);
  std::vector<float> wide(35);
  for (const char* name : {"cut", "whole"}) {
    REQUIRE(reader->read_f32(name, shape, Piece::whole(shape), wide));
    for (std::size_t i = 0; i < wide.size(); ++i) CHECK(wide[i] == static_cast<float>(values[i]));
  }
  CHECK(reader->view("cut")->empty());
  CHECK(reader->view("whole")->size() == 70);
  CHECK_FALSE(reader->view("absent"));
  CHECK_FALSE(reader->read_f32("whole", {7, 5}, Piece::whole({7, 5}), wide));
}

}  // namespace
}  // namespace sortie::trainer
