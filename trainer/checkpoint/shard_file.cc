#include "trainer/checkpoint/shard_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "common/base/check.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Result<> write_stream(const fs::path& path, ByteStream& stream, const Writing& writing) {
  SORTIE_ASSIGN_OR_RETURN(FileOutput file, FileOutput::create(path, writing.caching));
  Result<> written;
  stream.read(0, [&](std::span<const std::byte> bytes) {
    written = file.write(bytes);
    if (written && writing.on_written) writing.on_written(bytes.size());
    return written.has_value();
  });
  if (written) written = file.finish();
  std::error_code ignored;
  if (!written) fs::remove(path, ignored);
  return written;
}

}  // namespace

Result<WrittenFile> write_safetensors(const fs::path& path, std::vector<TensorToWrite> tensors,
                                      const std::map<std::string, std::string>& metadata,
                                      Hashed hashed, const Writing& writing) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    const std::size_t size_a = storage_bytes(a.entry.type);
    const std::size_t size_b = storage_bytes(b.entry.type);
    return size_a != size_b ? size_a > size_b : a.entry.name < b.entry.name;
  });
  std::vector<TensorEntry> entries;
  for (const TensorToWrite& tensor : tensors) entries.push_back(tensor.entry);
  const std::string header = make_safetensors_header(entries, metadata);
  std::vector<TensorData> pieces = {bytes_of(header)};
  WrittenFile written{.bytes = header.size()};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    SORTIE_CHECK(tensors[i].data.size == entries[i].end - entries[i].begin,
                 "tensor {}: {} bytes given, {} needed", entries[i].name, tensors[i].data.size,
                 entries[i].end - entries[i].begin);
    written.bytes += tensors[i].data.size;
    pieces.push_back(std::move(tensors[i].data));
  }
  // Hashing and writing each read the bytes independently.
  ByteStream stream(std::move(pieces), hashed == Hashed::yes ? 2 : 1, writing.allowance);
  Sha256 hash;
  std::vector<std::thread> threads;
  if (stream.has_work()) threads.emplace_back([&] { stream.make(); });
  if (hashed == Hashed::yes)
    threads.emplace_back([&] {
      stream.read(1, [&](std::span<const std::byte> bytes) {
        hash.update(bytes);
        return true;
      });
    });
  const Result<> result = write_stream(path, stream, writing);
  if (!result) stream.stop();
  for (std::thread& thread : threads) thread.join();
  SORTIE_TRY(result);
  if (hashed == Hashed::yes) written.sha256 = hash.finish_hex();
  return written;
}

Result<ShardInfo> write_shard(const fs::path& folder, std::size_t index, std::size_t count,
                              const std::vector<PieceToWrite>& pieces, const Writing& writing) {
  SORTIE_CHECK(index < count, "shard {} of {}", index, count);
  ShardInfo shard{.file = fmt::format("shard-{:05}-of-{:05}.safetensors", index, count)};
  std::vector<TensorToWrite> tensors;
  for (const PieceToWrite& piece : pieces) {
    const std::string problem = piece_problem(piece.piece, piece.shape);
    SORTIE_CHECK(problem.empty(), "tensor {}: {}", piece.name, problem);
    StoredPiece stored{.key = piece.name,
                       .name = piece.name,
                       .type = piece.type,
                       .shape = piece.shape,
                       .piece = piece.piece};
    // A whole tensor keeps its name, so that a shard of one rank is a plain safetensors model.
    if (!piece.piece.covers(piece.shape)) stored.key += fmt::format("@{}", shard.pieces.size());
    tensors.push_back(
        {{.name = stored.key, .type = piece.type, .shape = piece.piece.local_shape()}, piece.data});
    shard.pieces.push_back(std::move(stored));
  }
  SORTIE_ASSIGN_OR_RETURN(const WrittenFile written,
                          write_safetensors(folder / shard.file, std::move(tensors),
                                            {{"format", "pt"}}, Hashed::yes, writing));
  shard.bytes = written.bytes;
  shard.sha256 = written.sha256;
  return shard;
}

Result<SafetensorsFile> SafetensorsFile::open(const fs::path& path) {
  SafetensorsFile opened;
  SORTIE_ASSIGN_OR_RETURN(opened.file_, MappedFile::open(path, ErrorCode::checkpoint));
  SORTIE_ASSIGN_OR_RETURN(
      opened.header_,
      parse_safetensors_header(opened.file_.bytes(), opened.file_.size(), path.string()));
  for (std::size_t i = 0; i < opened.header_.tensors.size(); ++i)
    opened.by_name_.emplace(opened.header_.tensors[i].name, i);
  return opened;
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

std::span<const std::byte> SafetensorsFile::data(const TensorEntry& entry) const {
  return file_.bytes().subspan(header_.data_begin + entry.begin, entry.end - entry.begin);
}

}  // namespace sortie::trainer
