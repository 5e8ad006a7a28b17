// Loader: assembles a LoadedJob from the user's file, the job's file, --set and the options of the
// command line. Internal to load.cc (reading) and load_rules.cc (precedence and rules).
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/document.h"
#include "common/config/fields.h"
#include "common/config/load.h"
#include "common/config/user_file.h"

namespace sortie::config {

class Loader {
 public:
  Loader(std::string_view name, const std::vector<std::string>& overrides, const Amend& amend,
         const UserFile* user)
      : name_(name), overrides_(overrides), amend_(amend), user_(user) {}

  Result<LoadedJob> load(std::string_view text);

 private:
  /// Where a problem or a value comes from, in the order of the report and of precedence.
  enum class From { user_file, file, options };

  /// One line of the report. Problems in files come first, by position, then those of --set.
  struct Problem {
    From from = From::file;
    std::size_t override_index = 0;  // for From::options: 1 + index of the --set
    Position at;
    std::string text;
  };
  /// Origin of a key's value.
  struct Source {
    From from = From::file;
    std::size_t override_index = 0;
    Position at;
  };
  /// A position in the file that is being read.
  Source in_file(Position at) const { return {reading_, 0, at}; }
  static Source of_override(std::size_t index) { return {From::options, index, {}}; }

  void read_user_file();
  void give_way();
  void ignore_unread();
  const Source* source_of(const std::string& key) const;
  void reset(const std::string& key);
  void report(Source source, std::string text);
  void report_unknown(const Value& entry, const std::string& key);
  void read_as_meant(const Value& entry, const std::string& key);
  void read_table(const Value& table, const std::string& prefix);
  void read_entry(const Value& entry, const std::string& key);
  void set(const Field& field, const Value& value, Source source);
  void apply_override(std::size_t index);
  void apply_preset(const Value& root);
  void warn_of_preset();
  void set_variable(const Field& field, Value item, Source source);
  void report_exposed(std::string_view name, Source source);
  void check_rules();
  void report_broken(const Violation& violation);
  std::string where(Source source) const;
  std::string message() const;

  std::string name_;
  const std::vector<std::string>& overrides_;
  const Amend& amend_;
  const UserFile* const user_;
  From reading_ = From::file;
  LoadedJob loaded_;
  std::map<std::string, Source, std::less<>> sources_;
  std::set<std::string, std::less<>> bad_keys_;  // rules about them would repeat the problem
  std::vector<Problem> problems_;
};

}  // namespace sortie::config
