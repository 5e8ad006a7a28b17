// Named groups of hosts: "@gpu" in a host expression stands for the hosts that a groups file lists.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::config {

class HostGroups {
 public:
  /// No groups: a host expression that mentions one is an error.
  HostGroups() = default;
  /// Every group exists, with unknown hosts: for checks that must not read a file.
  static HostGroups any();

  /// Parses a TOML table of NAME = "EXPRESSION" or NAME = ["EXPRESSION", ...]. An expression may
  /// mention other groups of the file. Fails with ErrorCode::config and every problem, each as
  /// "<where>:<line>:<column>: ...".
  static Result<HostGroups> parse(std::string_view text, std::string_view where);

  /// Reads `file`. If the name is empty, reads $XDG_CONFIG_HOME/sortie/groups.toml or
  /// ~/.config/sortie/groups.toml, and returns no groups if that file does not exist.
  static Result<HostGroups> load(const std::string& file);

  bool is_any() const { return any_; }
  /// Names of all groups, sorted, without the '@'.
  std::vector<std::string> names() const;
  /// The hosts of a group; `name` is without the '@'. Empty if is_any(). An unknown group is
  /// ErrorCode::config.
  Result<std::vector<std::string>> hosts(std::string_view name) const;

 private:
  friend class GroupsReader;
  std::map<std::string, std::vector<std::string>, std::less<>> groups_;
  std::string where_;  // for messages
  bool any_ = false;
};

/// Whether the expression mentions a group, so that the groups file has to be read.
bool mentions_group(std::string_view expression);

}  // namespace sortie::config
