// PartMap: maps the trained parameters of a part of the model to one flat vector of f32 on one rank
// of the site, the part's leader.
//
// Each rank of the first replica leads a part: the elements that it holds. Elements that several
// ranks hold (parameters that tensor parallelism leaves whole, repeated key-value heads, an output
// layer that is tied to another stage's embedding) belong to the part of the rank that saves them.
// The vector has the parameters in the order of their global names, each with its blocks in the
// order in which the rank has them. So it is the same on every site that cuts the model in the same
// way, regardless of the site's number of replicas and topology.parameter_sharding.
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
  Dims shape;        // of the whole parameter
  Piece piece;
  std::int64_t at = 0;
};

/// Which values a vector holds.
enum class PartValues { weights, gradients, moment1, moment2 };

class PartMap {
 public:
  /// `store` must be finalized. Collective over layout.world(). Both arguments must outlive it.
  PartMap(ParameterStore& store, const Layout& layout);

  /// Whether this rank leads a part. Rank 0 leads part 0, which is empty if none of its elements
  /// are trained.
  bool leads() const { return part_ >= 0; }
  std::int64_t part() const { return part_; }          // -1: none
  std::int64_t parts() const { return parts_; }        // of the model
  std::int64_t elements() const { return elements_; }  // of this rank's vector
  /// The pieces of this rank's vector, in order; together they cover it.
  const std::vector<PartPiece>& pieces() const { return pieces_; }

  /// Gathers the site's values into the vectors of its leaders; moments in bf16 are widened.
  /// `vector` has elements() elements (checked). Collective.
  void gather(PartValues values, std::span<float> vector);
  /// Writes the leaders' vectors to the buffers of all ranks that hold or repeat the values: with a
  /// sharded store only to the own shares, and weights only to the f32 masters. Moments in bf16 are
  /// rounded to the nearest, so that values from gather() are restored exactly. Collective.
  void scatter(PartValues values, std::span<const float> vector);

 private:
  /// Elements of this rank's buffers that are in a leader's vector.
  struct Run {
    std::int64_t at = 0, count = 0;                     // in the vector
    std::int64_t master = 0, gradient = 0, moment = 0;  // its begin in each buffer
    std::int64_t place(PartValues values) const;
  };
  /// The same for the leader.
  struct Span {
    std::int64_t at = 0, count = 0;
  };
  /// Transfers to or from every rank, in rank order.
  struct Way {
    std::vector<Run> own;  // of this rank, by leader
    std::vector<std::int64_t> own_counts;
    std::vector<Span> led;  // of this rank's vector, by rank
    std::vector<std::int64_t> led_counts;
    bool stays = false;  // no rank sends anything to another: no messages are needed
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
