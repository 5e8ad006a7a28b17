// Tests of the safetensors format: golden bytes, and every kind of header that must be refused.
#include "trainer/checkpoint/safetensors.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <cstring>
#include <string>

#include "tests/support/temp_dir.h"
#include "trainer/checkpoint/shard_file.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Returns a file with this header text and `data_bytes` zero bytes of data.
std::string file_with(std::string_view header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + std::string(header) + std::string(data_bytes, '\0');
}

std::string problem_of(const std::string& file) {
  const auto header = parse_safetensors_header(as_bytes(file), file.size(), "f");
  if (header) return "accepted";
  CHECK(header.error().code == ErrorCode::checkpoint);
  CHECK(header.error().message.starts_with("f: "));
  return header.error().message;
}

std::string tensor(std::string_view name, std::string_view shape, std::uint64_t begin,
                   std::uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", name, shape,
                     begin, end);
}

bool contains(const std::string& text, std::string_view part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("one bf16 tensor is the golden file, byte for byte") {
  test::ScopedTempDir dir;
  const std::string data = "01234567";
  const auto written = write_safetensors(
      dir.path() / "w.safetensors",
      {{{.name = "w", .type = StorageType::bf16, .shape = {2, 2}}, as_bytes(data)}}, {});
  REQUIRE(written.has_value());
  const std::string golden = std::string("\x40\0\0\0\0\0\0\0", 8) +
                             R"({"w":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}})" +
                             "       " + data;
  CHECK(test::read_text(dir.path() / "w.safetensors") == golden);
  CHECK(written->bytes == golden.size());
  CHECK(written->sha256 == sha256_hex(golden));
}

TEST_CASE("tensors lie by falling element size, then by name, and come back") {
  test::ScopedTempDir dir;
  const std::string a(6, 'a'), b(8, 'b'), c(16, 'c'), d(4, 'd');
  REQUIRE(
      write_safetensors(dir.path() / "f",
                        {{{.name = "a", .type = StorageType::bf16, .shape = {3}}, as_bytes(a)},
                         {{.name = "d", .type = StorageType::f32, .shape = {}}, as_bytes(d)},
                         {{.name = "c", .type = StorageType::f64, .shape = {2, 1}}, as_bytes(c)},
                         {{.name = "b", .type = StorageType::f32, .shape = {2}}, as_bytes(b)},
                         {{.name = "none", .type = StorageType::u8, .shape = {0, 5}}, {}}},
                        {{"format", "pt"}})
          .has_value());
  const auto file = SafetensorsFile::open(dir.path() / "f");
  REQUIRE(file.has_value());
  std::string order;
  for (const TensorEntry& entry : file->header().tensors) order += entry.name + " ";
  CHECK(order == "c b d a none ");
  CHECK(file->header().metadata.at("format") == "pt");
  auto text_of = [&](const char* name) {
    const auto bytes = file->data(*file->find(name));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  CHECK(text_of("a") == a);
  CHECK(text_of("b") == b);
  CHECK(text_of("c") == c);
  CHECK(text_of("d") == d);
  CHECK(text_of("none").empty());
  CHECK(file->find("d")->shape.empty());
  CHECK(file->find("e") == nullptr);
}

TEST_CASE("names with any characters come back") {
  const std::string name = "a\"b\\c\n\xc3\xbc/\xf0\x9f\x9a\x80";
  std::vector<TensorEntry> entries = {{.name = name, .type = StorageType::f32, .shape = {1}}};
  const std::string file = make_safetensors_header(entries, {}) + "abcd";
  const auto header = parse_safetensors_header(as_bytes(file), file.size(), "f");
  REQUIRE(header.has_value());
  CHECK(header->tensors.at(0).name == name);
}

TEST_CASE("every type has its name and size") {
  for (int i = 0; i <= static_cast<int>(StorageType::f64); ++i) {
    const auto type = static_cast<StorageType>(i);
    CHECK(storage_from_name(storage_name(type)) == type);
    CHECK(storage_bytes(type) >= 1);
  }
  CHECK_FALSE(storage_from_name("F33").has_value());
}

TEST_CASE("products of sizes that overflow are absent") {
  CHECK(num_elements({}) == 1);
  CHECK(num_elements({3, 0, 1}) == 0);
  CHECK(num_elements({1 << 20, 1 << 20, 1 << 20}) == std::int64_t{1} << 60);
  CHECK_FALSE(num_elements({std::int64_t{1} << 40, std::int64_t{1} << 40}).has_value());
  CHECK_FALSE(num_elements({0, -1}).has_value());
}

TEST_CASE("a good header is accepted, also with metadata, spaces and an empty file") {
  CHECK(problem_of(file_with("{}", 0)) == "accepted");
  CHECK(problem_of(file_with("{" + tensor("a", "2", 0, 8) + "}   ", 8)) == "accepted");
  CHECK(problem_of(file_with(R"({"__metadata__":{"k":"v"},)" + tensor("a", "", 0, 4) + "}", 4)) ==
        "accepted");
  CHECK(problem_of(file_with("{" + tensor("b", "1", 4, 8) + "," + tensor("a", "1", 0, 4) + "}",
                             8)) == "accepted");
  CHECK(problem_of(file_with("{" + tensor("z", "0", 4, 4) + "," + tensor("a", "1", 0, 4) + "}",
                             4)) == "accepted");
}

TEST_CASE("hostile and damaged headers are refused with the reason") {
  CHECK(contains(problem_of(""), "too short"));
  CHECK(contains(problem_of("1234567"), "too short"));
  CHECK(contains(problem_of(std::string(8, '\xff')), "over the limit"));
  CHECK(contains(problem_of(file_with("{}", 0).substr(0, 9)), "truncated"));
  CHECK(contains(problem_of(file_with("", 0)), "does not start with {"));
  CHECK(contains(problem_of(file_with(" {}", 0)), "does not start with {"));
  CHECK(contains(problem_of(file_with("{", 0)), "not JSON"));
  CHECK(contains(problem_of(file_with("{}x", 0)), "not JSON"));
  CHECK(contains(problem_of(file_with("{\"\xff\":1}", 0)), "not JSON"));
  CHECK(contains(problem_of(file_with(R"({"a":1})", 0)), "a number at a"));
  CHECK(contains(problem_of(file_with(R"({"a":[]})", 0)), "an array at a"));
  CHECK(contains(problem_of(file_with(R"({"a":null})", 0)), "null at a"));
  CHECK(contains(problem_of(file_with(R"({"a":{}})", 0)), "needs dtype"));
  CHECK(contains(problem_of(file_with(R"({"a":{"dtype":"F32","shape":[]}})", 4)), "needs dtype"));
  CHECK(contains(problem_of(file_with(R"({"a":{"dtype":"X32"}})", 0)), "type X32 is unknown"));
  CHECK(contains(problem_of(file_with(R"({"a":{"size":3}})", 0)), "unknown field size"));
  CHECK(contains(problem_of(file_with(R"({"a":{"shape":[-1]}})", 0)), "a negative number"));
  CHECK(contains(problem_of(file_with(R"({"a":{"shape":[1.5]}})", 0)), "a fraction"));
  CHECK(contains(problem_of(file_with(R"({"a":{"shape":[true]}})", 0)), "a boolean"));
  CHECK(contains(problem_of(file_with(R"({"a":{"shape":[[1]]}})", 0)), "an array"));
  CHECK(
      contains(problem_of(file_with(R"({"a":{"shape":[18446744073709551615]}})", 0)), "too large"));
  CHECK(contains(problem_of(file_with(R"({"a":{"data_offsets":[0,1,2]}})", 0)), "third"));
  CHECK(contains(problem_of(file_with(R"({"a":{"dtype":"F32","dtype":"F32"}})", 0)),
                 "dtype comes twice"));
  CHECK(contains(
      problem_of(file_with("{" + tensor("a", "1", 0, 4) + "," + tensor("a", "1", 4, 8) + "}", 8)),
      "tensor a comes twice"));
  CHECK(contains(problem_of(file_with(R"({"__metadata__":{"k":1}})", 0)), "a number"));
  CHECK(contains(problem_of(file_with(R"({"__metadata__":"k"})", 0)), "a string"));
  CHECK(contains(problem_of(file_with("{" + tensor("a", "1", 4, 8) + "}", 8)),
                 "starts at byte 4, but the one before it ends at byte 0"));
  CHECK(contains(
      problem_of(file_with("{" + tensor("a", "2", 0, 8) + "," + tensor("b", "1", 4, 8) + "}", 8)),
      "starts at byte 4, but the one before it ends at byte 8"));
  CHECK(contains(problem_of(file_with("{" + tensor("a", "2", 0, 4) + "}", 8)), "8 needed"));
  CHECK(contains(problem_of(file_with("{" + tensor("a", "1", 0, 8) + "}", 8)), "4 needed"));
  CHECK(contains(problem_of(file_with("{" + tensor("a", "1", 8, 0) + "}", 8)), "starts at byte 8"));
  CHECK(contains(problem_of(file_with("{" + tensor("a", "1", 0, 4) + "}", 5)),
                 "end at byte 4 of the data, the file at 5"));
  CHECK(contains(problem_of(file_with("{" + tensor("a", "2", 0, 8) + "}", 4)), "larger than"));
  CHECK(contains(problem_of(file_with("{" + tensor("a", "4611686018427387904,4", 0, 0) + "}", 0)),
                 "larger"));
  std::string deep = "{\"a\":";
  deep.append(1'000'000, '[');
  CHECK(contains(problem_of(file_with(deep, 0)), "an array at a"));
}

TEST_CASE("each truncation of a good file is refused") {
  const std::string good = file_with("{" + tensor("a", "2", 0, 8) + "}", 8);
  for (std::size_t size = 0; size < good.size(); ++size) {
    CAPTURE(size);
    CHECK(problem_of(good.substr(0, size)) != "accepted");
  }
}

}  // namespace sortie::trainer
