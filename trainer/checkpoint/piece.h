// Piece: a part of a tensor, and the intersection of two parts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/checkpoint/safetensors.h"

namespace sortie::trainer {

/// The elements [begin, end), in row-major order, of the box [offset, offset + extent) of a tensor.
/// A tensor-parallel cut is a box; a ZeRO cut of it is an interval, which may begin and end inside
/// a row.
struct Piece {
  Dims offset{};
  Dims extent{};
  std::int64_t begin = 0;
  std::int64_t end = 0;

  static Piece whole(const Dims& shape);
  static Piece box(Dims offset, Dims extent);
  /// The elements [begin, end) of the whole tensor.
  static Piece interval(const Dims& shape, std::int64_t begin, std::int64_t end);

  std::int64_t elements() const { return end - begin; }
  bool covers(const Dims& shape) const { return *this == whole(shape); }
  /// The shape of the piece by itself: its box, or one dimension if it is less than the box.
  Dims local_shape() const;
  std::string to_string() const;  // "[0:4, 8:16] elements 3 to 20"
  bool operator==(const Piece&) const = default;
};

/// Checks that the piece is inside a tensor of that shape: returns "" or what is wrong.
std::string piece_problem(const Piece& piece, const Dims& shape);

/// Calls f(at_in_a, at_in_b, count) for every run of elements that both pieces contain; positions
/// are counted in elements from the start of each piece. Both must be pieces of the same tensor.
void for_each_shared_run(const Piece& a, const Piece& b,
                         const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& f);

/// Checks that the pieces contain every element of the shape exactly once: returns "" or what is
/// wrong.
std::string tiling_problem(const std::vector<Piece>& pieces, const Dims& shape);

}  // namespace sortie::trainer
