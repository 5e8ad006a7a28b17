#include "common/config/hostgroups.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "common/base/atomic_file.h"
#include "common/config/document.h"
#include "common/config/hostlist.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

constexpr std::size_t kMaxGroupsFileBytes = 4u << 20;
constexpr std::size_t kMaxGroupHosts = 1u << 20;  // sum over all groups
constexpr std::size_t kMaxGroups = 4096;
constexpr std::size_t kMaxGroupDepth = 64;

bool is_group_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !name.empty() && name.size() <= 64 && plain(name.front()) &&
         std::ranges::all_of(name, [&](char c) { return plain(c) || c == '.' || c == '-'; });
}

std::string default_file() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return fmt::format("{}/sortie/groups.toml", config);
  const char* home = std::getenv("HOME");
  return fmt::format("{}/.config/sortie/groups.toml", home != nullptr ? home : "");
}

}  // namespace

/// Reads the table of one file. Defines groups before those that mention them; collects all
/// problems.
class GroupsReader {
 public:
  GroupsReader(std::string_view text, std::string_view where)
      : where_(where), document_(parse_document(text)) {}

  Result<HostGroups> read() {
    groups_.where_ = where_;
    for (const SyntaxError& error : document_.errors) report(error.at, error.message);
    if (document_.root.items.size() > kMaxGroups) {
      report(document_.root.items[kMaxGroups].key_at,
             fmt::format("more than {} groups; remove some", kMaxGroups));
    } else {
      for (const Value& entry : document_.root.items) define(entry);
    }
    if (problems_.empty()) return std::move(groups_);
    std::ranges::stable_sort(problems_, {}, &Problem::at);
    std::string text;
    for (const Problem& problem : problems_)
      text += fmt::format("{}{}:{}:{}: {}", text.empty() ? "" : "\n", where_, problem.at.line,
                          problem.at.column, problem.message);
    return fail(ErrorCode::config, std::move(text));
  }

 private:
  struct Problem {
    Position at;
    std::string message;
  };

  void report(Position at, std::string message) { problems_.push_back({at, std::move(message)}); }

  /// Returns false if the group has a problem. Reports each problem only once.
  bool define(const Value& entry) {
    if (groups_.groups_.contains(entry.key)) return true;
    if (std::ranges::find(bad_, entry.key) != bad_.end()) return false;
    const bool good = define_new(entry);
    if (!good) bad_.push_back(entry.key);
    return good;
  }

  bool define_new(const Value& entry) {
    if (!is_group_name(entry.key)) {
      report(entry.key_at,
             fmt::format("{} is no group name; use up to 64 letters, digits, '.', '_' and '-', no "
                         "'.' or '-' first",
                         quote(shorten(entry.key))));
      return false;
    }
    std::vector<const Value*> parts;
    if (entry.type == Value::Type::list)
      for (const Value& item : entry.items) parts.push_back(&item);
    else
      parts.push_back(&entry);
    open_.push_back(entry.key);
    bool good = true;
    for (const Value* part : parts) good = check_part(*part) && good;
    std::vector<std::string> hosts;
    for (const Value* part : parts) {
      if (!good) break;
      auto expanded = expand_host_expression(part->text, &groups_);
      if (!expanded) {
        report(part->at, fmt::format("group {}: {}", entry.key, expanded.error().message));
        good = false;
        break;
      }
      hosts.insert(hosts.end(), expanded->begin(), expanded->end());
    }
    open_.pop_back();
    if (!good) return false;
    keep_first_of_each(hosts);
    total_ += hosts.size();
    if (total_ > kMaxGroupHosts) {
      report(entry.at,
             fmt::format("more than {} hosts in all groups; remove some", kMaxGroupHosts));
      return false;
    }
    groups_.groups_[entry.key] = std::move(hosts);
    return true;
  }

  /// Returns true for a string whose groups are all valid; defines those that are not defined yet.
  bool check_part(const Value& part) {
    if (part.type != Value::Type::text) {
      report(part.at, fmt::format("a group is a host expression or a list of them, not {}; write "
                                  "NAME = \"gpu[01-08]\"",
                                  describe(part)));
      return false;
    }
    for (const std::string& name : mentioned_groups(part.text)) {
      const auto entry = std::ranges::find(document_.root.items, name, &Value::key);
      if (entry == document_.root.items.end()) continue;  // expansion reports the missing group
      if (const auto begin = std::ranges::find(open_, name); begin != open_.end()) {
        std::string way;
        for (auto it = begin; it != open_.end(); ++it) way += fmt::format("@{} > ", *it);
        report(part.at,
               fmt::format("{}@{} goes round in a circle; take one of them out", way, name));
        return false;
      }
      if (open_.size() >= kMaxGroupDepth) {
        report(part.at,
               fmt::format("more than {} groups inside each other; flatten them", kMaxGroupDepth));
        return false;
      }
      if (!define(*entry)) return false;  // reported there
    }
    return true;
  }

  static void keep_first_of_each(std::vector<std::string>& hosts) {
    std::map<std::string_view, bool> seen;
    std::vector<std::string> unique;
    for (const std::string& host : hosts)
      if (seen.emplace(host, true).second) unique.push_back(host);
    hosts = std::move(unique);
  }

  const std::string where_;
  const Document document_;
  HostGroups groups_;
  std::vector<std::string> open_, bad_;
  std::vector<Problem> problems_;
  std::size_t total_ = 0;
};

HostGroups HostGroups::any() {
  HostGroups groups;
  groups.any_ = true;
  return groups;
}

Result<HostGroups> HostGroups::parse(std::string_view text, std::string_view where) {
  return GroupsReader(text, where).read();
}

Result<HostGroups> HostGroups::load(const std::string& file) {
  const std::string path = file.empty() ? default_file() : file;
  auto text = read_file(path, kMaxGroupsFileBytes);
  if (!text) {
    if (!file.empty() || text.error().code != ErrorCode::not_found)
      return std::unexpected(with_context(std::move(text).error(), "groups file"));
    HostGroups none;
    none.where_ = path;
    return none;
  }
  return parse(*text, path);
}

std::vector<std::string> HostGroups::names() const {
  std::vector<std::string> out;
  for (const auto& [name, expressions] : groups_) out.push_back(name);
  return out;
}

Result<std::vector<std::string>> HostGroups::hosts(std::string_view name) const {
  if (!is_group_name(name))
    return fail(ErrorCode::config,
                fmt::format("{} is no group; write @NAME, where the groups file has NAME = "
                            "\"gpu[01-08]\"",
                            quote("@" + shorten(name))));
  if (any_) return std::vector<std::string>();
  if (const auto found = groups_.find(name); found != groups_.end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& [key, hosts] : groups_) names.push_back(key);
  const std::string_view near = nearest(name, names);
  std::string advice = where_.empty() ? std::string("name a groups file with --groups")
                       : near.empty() ? fmt::format("write it there: {} = \"gpu[01-08]\"", name)
                                      : fmt::format("did you mean @{}?", near);
  return fail(ErrorCode::config,
              fmt::format("there is no group @{}{}; {}", name,
                          where_.empty() ? "" : fmt::format(" in {}", where_), advice));
}

}  // namespace sortie::config
