// f64 numbers on a tape, for references that are written out as formulas: values, and their slopes
// by reverse accumulation.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace sortie::trainer::reference {

class Tape {
 public:
  std::size_t add(std::size_t a, double da, std::size_t b, double db) {
    nodes_.push_back({a, b, da, db});
    return nodes_.size() - 1;
  }
  std::size_t leaf() { return add(0, 0.0, 0, 0.0); }
  /// Returns the slopes of `output` with respect to every node.
  std::vector<double> slopes(std::size_t output) const {
    std::vector<double> slope(nodes_.size());
    slope[output] = 1.0;
    for (std::size_t i = output + 1; i-- > 0;) {
      slope[nodes_[i].a] += nodes_[i].da * slope[i];
      slope[nodes_[i].b] += nodes_[i].db * slope[i];
    }
    return slope;
  }

 private:
  struct Node {
    std::size_t a, b;  // a node without inputs refers to itself, with slope 0
    double da, db;
  };
  std::vector<Node> nodes_;
};

/// A value on a tape, or a constant if it has no tape.
struct Scalar {
  double value = 0.0;
  std::size_t node = 0;
  Tape* tape = nullptr;

  Scalar() = default;
  Scalar(double result, const Scalar& a, double da) : Scalar(result, a, da, Scalar(), 0.0) {}
  Scalar(double constant) : value(constant) {}
  Scalar(Tape& on, double start) : value(start), node(on.leaf()), tape(&on) {}
  Scalar(double result, const Scalar& a, double da, const Scalar& b, double db)
      : value(result), tape(a.tape != nullptr ? a.tape : b.tape) {
    if (tape == nullptr) return;
    node =
        tape->add(a.tape ? a.node : 0, a.tape ? da : 0.0, b.tape ? b.node : 0, b.tape ? db : 0.0);
  }
};

inline Scalar operator+(const Scalar& a, const Scalar& b) {
  return {a.value + b.value, a, 1.0, b, 1.0};
}
inline Scalar operator-(const Scalar& a, const Scalar& b) {
  return {a.value - b.value, a, 1.0, b, -1.0};
}
inline Scalar operator*(const Scalar& a, const Scalar& b) {
  return {a.value * b.value, a, b.value, b, a.value};
}
inline Scalar operator/(const Scalar& a, const Scalar& b) {
  return {a.value / b.value, a, 1.0 / b.value, b, -a.value / (b.value * b.value)};
}
inline Scalar& operator+=(Scalar& a, const Scalar& b) {
  return a = a + b;
}
inline Scalar exp(const Scalar& a) {
  return {std::exp(a.value), a, std::exp(a.value)};
}
inline Scalar log(const Scalar& a) {
  return {std::log(a.value), a, 1.0 / a.value};
}
inline Scalar sqrt(const Scalar& a) {
  return {std::sqrt(a.value), a, 0.5 / std::sqrt(a.value)};
}

using Row = std::vector<Scalar>;

}  // namespace sortie::trainer::reference
