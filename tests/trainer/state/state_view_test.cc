// Tests of the state as pieces: shares of it, cut models, and what ranks send each other.
#include "trainer/state/state_view.h"

#include <doctest/doctest.h>

#include <map>

#include "common/config/architectures.h"
#include "tests/support/flat_values.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/store.h"
#include "trainer/state/rank_texts.h"

using namespace sortie;
using namespace sortie::trainer;
namespace fs = std::filesystem;

namespace {

using trainer::test::host_view;

void declare_small_model(ParameterStore& store) {
  const CutRule rows{.axis = 0}, columns{.axis = 1};
  store.add({"embedding", {16, 3}, Init::normal(1.0), Use::matrix, true, {}, rows});
  store.add(
      {"gate_up", {16, 5}, Init::normal(1.0), Use::matrix, true, {{"gate", 8}, {"up", 8}}, rows});
  store.add({"down", {5, 8}, Init::normal(1.0), Use::matrix, true, {}, columns});
  store.add({"norm", {7}, Init::ones(), Use::vector, false});
}

/// Makes a part of the model with its initial values, and moments that differ from them.
void make_part(ParameterStore& store, ExecutionContext& context, int index, int count,
               DType moments = DType::f32) {
  declare_small_model(store);
  REQUIRE(store.cut({.dense = {index, count}}));
  store.keep_moments_in(moments);
  store.finalize(context, DType::f32, 16, true);
  store.initialize(5);
  const auto master = host_view(store, store.master());
  const auto fill = [&]<class T>(T, const Tensor& moment, float factor, float more) {
    const ops::HostAccess<T> values(context, moment);
    for (const auto& parameter : store.parameters())
      for (std::int64_t i = parameter->offset(); i < parameter->offset() + parameter->elements();
           ++i) {
        const auto at = static_cast<std::size_t>(i);
        values[at] = static_cast<T>(factor * master[at] + more);
      }
  };
  for (const auto& [moment, factor, more] :
       {std::tuple(&store.moment1(), 2.0f, 0.0f), std::tuple(&store.moment2(), 1.0f, 1.0f)}) {
    CHECK(moment->dtype() == moments);
    if (moments == DType::bf16)
      fill(bf16(), *moment, factor, more);
    else
      fill(float(), *moment, factor, more);
  }
}

/// Saves a model in `parts` parts. The two replicas of each part write half of its pieces each.
fs::path save_cut(const fs::path& dir, int parts, ExecutionContext& context, DType moments) {
  auto store = CheckpointStore::open(dir, {"test"});
  REQUIRE(store);
  const auto folder = store->begin(1, 10'000);
  REQUIRE(folder);
  std::vector<ShardInfo> shards;
  const auto writers = static_cast<std::size_t>(2 * parts);
  for (int part = 0; part < parts; ++part) {
    ParameterStore model;
    make_part(model, context, part, parts, moments);
    const StateView view(model);
    for (std::size_t replica = 0; replica < 2; ++replica) {
      std::vector<PieceToWrite> pieces;
      for (const StatePiece& piece :
           share_of(StateView(model).pieces(TiedCopies::leave_out), replica, 2)) {
        // The first part writes parameters that all parts have.
        if (!piece.parameter->spec().cut.axis && part > 0) continue;
        pieces.push_back({.name = piece.name,
                          .type = piece.type,
                          .shape = piece.shape,
                          .piece = piece.piece,
                          .data = std::span<const std::byte>(piece.bytes)});
      }
      auto shard =
          write_shard(*folder, static_cast<std::size_t>(part) * 2 + replica, writers, pieces);
      REQUIRE(shard);
      shards.push_back(std::move(*shard));
    }
  }
  const auto committed = store->commit(*folder, {.run_id = "test", .step = 1}, shards);
  REQUIRE_MESSAGE(committed, (committed ? "" : committed.error().message));
  return *committed;
}

}  // namespace

TEST_CASE("what a cut model saves is read into any other cut") {
  ExecutionContext context(1);
  for (const int saved : {1, 2, 4})
    for (const int wanted : {1, 2, 4, 8}) {
      CAPTURE(saved);
      CAPTURE(wanted);
      const DType moments = saved == 2 || wanted == 2 ? DType::bf16 : DType::f32;
      const sortie::test::ScopedTempDir dir;
      const fs::path checkpoint = save_cut(dir.path(), saved, context, moments);
      auto reader = CheckpointReader::open(checkpoint, CheckDepth::hashes);
      REQUIRE(reader);
      for (int part = 0; part < wanted; ++part) {
        ParameterStore model;
        make_part(model, context, part, wanted, moments);
        for (const StatePiece& piece : StateView(model).pieces(TiedCopies::include)) {
          CAPTURE(piece.name);
          std::vector<std::byte> read(piece.bytes.size());
          REQUIRE(reader->read(piece.name, piece.type, piece.shape, piece.piece, read));
          CHECK(std::ranges::equal(read, piece.bytes));
        }
      }
    }
}

TEST_CASE("shares are equal and leave nothing out") {
  ExecutionContext context(1);
  ParameterStore model;
  make_part(model, context, 0, 1);
  const std::vector<StatePiece> all = StateView(model).pieces(TiedCopies::include);
  const std::int64_t total = elements_of(all);
  CHECK(total == 3 * (48 + 80 + 40 + 7));
  for (const std::size_t count : {1u, 2u, 3u, 7u, 600u}) {
    CAPTURE(count);
    std::map<std::string, std::vector<Piece>> tiles;
    const std::byte* next = nullptr;
    for (std::size_t index = 0; index < count; ++index) {
      const auto share = share_of(all, index, count);
      const std::int64_t size = elements_of(share);
      CHECK(size >= total / static_cast<std::int64_t>(count));
      CHECK(size <= total / static_cast<std::int64_t>(count) + 1);
      for (const StatePiece& piece : share) {
        CHECK(static_cast<std::int64_t>(floats_in(piece.bytes).size()) == piece.piece.elements());
        if (next != nullptr && piece.piece.begin > 0) CHECK(piece.bytes.data() == next);
        next = piece.bytes.data() + piece.bytes.size();
        tiles[piece.name].push_back(piece.piece);
      }
    }
    CHECK(tiles.size() == all.size());
    for (const StatePiece& piece : all) CHECK(tiling_problem(tiles[piece.name], piece.shape) == "");
  }
}

TEST_CASE("shares of moments in bf16 beside f32 weights are equal by their bytes") {
  ExecutionContext context(1);
  ParameterStore model;
  make_part(model, context, 0, 1, DType::bf16);
  const std::vector<StatePiece> all = StateView(model).pieces(TiedCopies::include);
  const std::uint64_t total = bytes_of(all);
  CHECK(total == (4 + 2 + 2) * (48 + 80 + 40 + 7));
  for (const std::size_t count : {1u, 2u, 3u, 7u, 60u}) {
    CAPTURE(count);
    std::map<std::string, std::vector<Piece>> tiles;
    for (std::size_t index = 0; index < count; ++index) {
      const auto share = share_of(all, index, count);
      CHECK(bytes_of(share) + 4 > total / count);
      CHECK(bytes_of(share) < total / count + 1 + 4);
      for (const StatePiece& piece : share) {
        CHECK(piece.type == (piece.moment ? StorageType::bf16 : StorageType::f32));
        CHECK(piece.bytes.size() ==
              static_cast<std::size_t>(piece.piece.elements()) * piece.element_bytes());
        tiles[piece.name].push_back(piece.piece);
      }
    }
    for (const StatePiece& piece : all) CHECK(tiling_problem(tiles[piece.name], piece.shape) == "");
  }
}

TEST_CASE("a copy of another rank's parameter is saved as that one, by that rank") {
  ExecutionContext context(1);
  ParameterStore model;
  model.add({"head", {8, 4}, Init::normal(1.0), Use::matrix, true, {}, {}, "embedding"});
  model.finalize(context, DType::f32, 16, true);
  CHECK(StateView(model).pieces(TiedCopies::leave_out).empty());
  const auto pieces = StateView(model).pieces(TiedCopies::include);
  REQUIRE(pieces.size() == 3);
  CHECK(pieces[0].name == "model.embedding");
  CHECK(pieces[2].name == "optimizer.v.embedding");
}

TEST_CASE("values and errors go from rank to rank as text") {
  const std::vector<Result<std::string>> sent = {
      "", "v3:abc\n", fail(ErrorCode::io, "write /x: No space left\non device"),
      std::string("\0\xff", 2)};
  const auto received = unpack(pack(sent));
  REQUIRE(received.size() == sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    REQUIRE(received[i].has_value() == sent[i].has_value());
    if (sent[i])
      CHECK(*received[i] == *sent[i]);
    else
      CHECK((received[i].error().code == sent[i].error().code &&
             received[i].error().message == sent[i].error().message));
  }
  CHECK(unpack("").empty());
}

TEST_CASE("every family, cut in two, starts from the values of the whole") {
  ExecutionContext context(1);
  for (const Family& family : families()) {
    CAPTURE(std::string(family.name));
    const config::JobConfig job = trainer::test::family_job(std::string(family.name));
    const auto make = [&](ParameterStore& store, int part, int parts) {
      const LanguageModel model(context, job.model, store, false);
      const auto cut = store.cut({.dense = {part, parts}, .expert = {part, parts}});
      REQUIRE_MESSAGE(cut, (cut ? "" : cut.error().message));
      store.finalize(context, DType::f32, 16, false);
      store.initialize(9);
    };
    ParameterStore whole;
    make(whole, 0, 1);
    std::int64_t in_parts = 0, repeated = 0;
    for (int part = 0; part < 2; ++part) {
      ParameterStore half;
      make(half, part, 2);
      for (const StatePiece& piece : StateView(half).pieces(TiedCopies::include)) {
        if (piece.moment) continue;
        const Parameter& own = *whole.find(piece.parameter->name());
        const auto values =
            host_view(whole, whole.master()).span().subspan(static_cast<std::size_t>(own.offset()));
        const std::span<float> held = floats_in(piece.bytes);
        bool equal = true;
        for_each_shared_run(Piece::whole(piece.shape), piece.piece,
                            [&](std::int64_t from, std::int64_t to, std::int64_t count) {
                              for (std::int64_t i = 0; i < count; ++i)
                                equal = equal && values[static_cast<std::size_t>(from + i)] ==
                                                     held[static_cast<std::size_t>(to + i)];
                            });
        CHECK_MESSAGE(equal, piece.name);
        in_parts += piece.piece.elements();
        if (part == 1 && !piece.parameter->spec().cut.axis) repeated += piece.piece.elements();
      }
    }
    std::int64_t all = 0;
    for (const auto& parameter : whole.parameters()) all += parameter->elements();
    CHECK(in_parts == all + repeated);
    CHECK(10 * repeated < 3 * all);  // most of a model is cut
  }
}
