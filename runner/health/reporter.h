// What goes out: one line per finding at once; what repeats is counted and said again a minute
// later; a storm can neither fill the pipe nor keep this process waiting.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "common/health/finding.h"

namespace sortie::runner::health {

class Reporter {
 public:
  static constexpr double kRepeatSeconds = 60;
  static constexpr std::size_t kMostAMinute = 60;  // lines
  static constexpr std::size_t kMostKeys = 256;    // different findings that are remembered

  /// Writes to `fd`, which is made non-blocking and stays the caller's.
  explicit Reporter(int fd);

  /// `now`: seconds on any clock that does not jump.
  void say(const sortie::health::Finding& finding, double now);
  /// Says what has been counted and is due, and how much was left out.
  void tick(double now);
  /// When tick() has something to say, at the earliest; nothing = not before the next say().
  std::optional<double> due() const;
  /// The reader is gone: nothing more can be said.
  bool closed() const { return closed_; }

 private:
  /// An error whose remedy the driver tells is said beside the same one from the kernel's log.
  using Key = std::tuple<sortie::health::Kind, int, bool, std::string>;
  struct Said {
    double at = 0;
    std::uint64_t more = 0;
    sortie::health::Finding last;
  };
  bool write(const sortie::health::Finding& finding, double now);
  void forget_old(double now);

  int fd_;
  std::map<Key, Said> said_;
  double minute_ = -1e9;  // when the present one began
  std::size_t lines_ = 0;
  std::uint64_t dropped_ = 0;
  bool closed_ = false;
};

}  // namespace sortie::runner::health
