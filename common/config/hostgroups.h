// Groups of hosts by name: "@gpu" in a host expression stands for what a groups file says it is.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::config {

class HostGroups {
 public:
  /// No group at all: a mention of one is an error.
  HostGroups() = default;
  /// Any group, none of whose hosts is known: for checks that may read no file.
  static HostGroups any();

  /// A TOML table of NAME = "EXPRESSION" or NAME = ["EXPRESSION", ...]; an expression may mention
  /// other groups of the file. ErrorCode::config with every problem as "<where>:<line>:<column>: ".
  static Result<HostGroups> parse(std::string_view text, std::string_view where);

  /// Reads `file`. With an empty name: $XDG_CONFIG_HOME/sortie/groups.toml or
  /// ~/.config/sortie/groups.toml, and no groups where that is not there.
  static Result<HostGroups> load(const std::string& file);

  bool is_any() const { return any_; }
  /// Of all groups, sorted, without the '@'.
  std::vector<std::string> names() const;
  /// The hosts of a group, without the '@'.
  Result<std::vector<std::string>> hosts(std::string_view name) const;

 private:
  friend class GroupsReader;
  std::map<std::string, std::vector<std::string>, std::less<>> groups_;
  std::string where_;  // for messages
  bool any_ = false;
};

/// Whether an element of the expression is a group, so that the groups file has to be read.
bool mentions_group(std::string_view expression);

}  // namespace sortie::config
