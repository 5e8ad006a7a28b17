// PartMap: what is trained of this rank's part of the model as one flat vector of f32 on one rank
// of the site, the part's leader.
//
// A part is what the ranks of the first replica hold, each element by one of them: what several
// have (what tensor parallelism leaves whole, key-value heads that are repeated, an output layer
// that is tied to another stage's embedding) belongs to the one that saves it. The vector has the
// parameters in the order of their global names, each with its blocks in the order in which the
// rank has them. So it is the same on every site that cuts the model alike, however many replicas a
// site has and how they share it out (topology.parameter_sharding).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/checkpoint/piece.h"
#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/layout.h"

namespace sortie::trainer::outer {

/// Elements [at, at + piece.elements()) of a part's vector.
struct PartPiece {
  std::string name;  // global, of the parameter
  Dims shape;        // of the whole of it
  Piece piece;
  std::int64_t at = 0;
};

/// What a vector holds.
enum class PartValues { weights, gradients, moment1, moment2 };

class PartMap {
 public:
  /// Of a finalized store. Collective over layout.world(). Both must outlive it.
  PartMap(ParameterStore& store, const Layout& layout);

  /// Whether this rank leads a part; rank 0 leads part 0, which is empty where nothing of it is
  /// trained.
  bool leads() const { return part_ >= 0; }
  std::int64_t part() const { return part_; }          // -1: none
  std::int64_t parts() const { return parts_; }        // of the model
  std::int64_t elements() const { return elements_; }  // of this rank's vector
  /// Of this rank's vector, in its order: they tile it.
  const std::vector<PartPiece>& pieces() const { return pieces_; }

  /// The site's values into the vectors of its leaders, moments in bf16 widened; `vector` has
  /// elements(). Collective.
  void gather(PartValues values, std::span<float> vector);
  /// The vectors into the buffers of all ranks that hold or repeat the values: of a sharded store
  /// into the own shares alone, and of weights into the f32 masters alone. Moments in bf16 are
  /// rounded to the nearest: those that gather() has given are what they were. Collective.
  void scatter(PartValues values, std::span<const float> vector);

 private:
  /// Elements of this rank's buffers that lie in a leader's vector.
  struct Run {
    std::int64_t at = 0, count = 0;                     // in the vector
    std::int64_t master = 0, gradient = 0, moment = 0;  // where it begins in each buffer
    std::int64_t place(PartValues values) const;
  };
  /// The same as the leader knows it.
  struct Span {
    std::int64_t at = 0, count = 0;
  };
  /// To or from every rank, in the order of the ranks.
  struct Way {
    std::vector<Run> own;  // of this rank, by leader
    std::vector<std::int64_t> own_counts;
    std::vector<Span> led;  // of this rank's vector, by rank
    std::vector<std::int64_t> led_counts;
    bool stays = false;  // on all ranks: nothing goes to another one, and no message is needed
  };
  void find_own_pieces();
  bool saves(const Parameter& parameter) const;
  bool first_of_replicas(const Parameter& parameter) const;
  std::vector<std::vector<PartPiece>> tell_pieces();
  Way find_way(const std::vector<std::vector<PartPiece>>& leaders, bool copies);
  Tensor& buffer(PartValues values);
  Tensor widened(const Tensor& kept);
  void put(PartValues values, std::span<const float> vector, Tensor& wide);
  void spread_over_replicas(std::span<float> values);

  ParameterStore& store_;
  const Layout& layout_;
  std::vector<PartPiece> pieces_;
  std::int64_t part_ = -1, parts_ = 0, elements_ = 0;
  Way in_, out_;
};

}  // namespace sortie::trainer::outer
