// Helpers for tests of Hugging Face folders: folders that a test may change, and their tensors as
// bytes.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "trainer/checkpoint/shard_file.h"

namespace sortie::trainer::test {

namespace fs = std::filesystem;
using Json = nlohmann::json;

inline const fs::path kData = SORTIE_TEST_DATA "/hf";

/// A temporary folder, removed with this object.
struct Scratch {
  fs::path path = fs::temp_directory_path() / ("sortie-hf-" + std::to_string(::getpid()));
  Scratch() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Scratch() { fs::remove_all(path); }
};

inline Json json_of(const fs::path& path) {
  return Json::parse(read_file(path).value());
}
inline void write_json(const fs::path& path, const Json& json) {
  REQUIRE(write_file_atomic(path, json.dump(1)));
}

struct Entry {
  StorageType type;
  Dims shape;
  std::vector<std::byte> data;
};
using Tensors = std::map<std::string, Entry>;

inline Tensors tensors_of(const fs::path& file) {
  Tensors tensors;
  const SafetensorsFile opened = SafetensorsFile::open(file).value();
  for (const TensorEntry& entry : opened.header().tensors) {
    const auto data = opened.data(entry);
    tensors[entry.name] = {entry.type, entry.shape, {data.begin(), data.end()}};
  }
  return tensors;
}
/// Returns the tensors of all weight files of a folder.
inline Tensors all_tensors(const fs::path& folder) {
  Tensors all;
  for (const auto& file : fs::directory_iterator(folder))
    if (file.path().extension() == ".safetensors" && file.path().stem() != "reference")
      all.merge(tensors_of(file.path()));
  return all;
}
inline void write_tensors(const fs::path& file, const Tensors& tensors) {
  std::vector<TensorToWrite> list;
  for (const auto& [name, entry] : tensors) {
    TensorToWrite one;
    one.entry.name = name;
    one.entry.type = entry.type;
    one.entry.shape = entry.shape;
    one.data = entry.data;
    list.push_back(std::move(one));
  }
  fs::remove(file);
  REQUIRE(write_safetensors(file, std::move(list), {{"format", "pt"}}));
}
inline void check_same(const Tensors& a, const Tensors& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, entry] : a) {
    CAPTURE(name);
    REQUIRE(b.contains(name));
    CHECK(b.at(name).type == entry.type);
    CHECK(b.at(name).shape == entry.shape);
    CHECK(b.at(name).data == entry.data);
  }
}

/// Returns a copy of a fixture that may be changed.
inline fs::path copy_of(const Scratch& scratch, const std::string& name) {
  const fs::path to = scratch.path / name;
  fs::create_directories(to);
  for (const char* file : {"config.json", "model.safetensors", "generation_config.json"})
    fs::copy_file(kData / name / file, to / file, fs::copy_options::overwrite_existing);
  return to;
}

}  // namespace sortie::trainer::test
