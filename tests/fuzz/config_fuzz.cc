// Fuzzes load_job_text() with a job's TOML and --set overrides. Rejected input has an error with a
// location. For accepted input the output of `config show` loads as the same job.
//
// A line "#--set TEXT" in the input is also an override, so seeds stay readable TOML. Byte 0x1f in
// it stands for a newline.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/config/describe.h"
#include "common/config/fields.h"
#include "common/config/hostlist.h"
#include "common/config/load.h"

namespace {

using namespace sortie::config;

std::vector<std::string> overrides_in(std::string_view text) {
  constexpr std::string_view kMark = "#--set ";
  std::vector<std::string> overrides;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.starts_with(kMark)) {
      std::string& value = overrides.emplace_back(line.substr(kMark.size()));
      std::ranges::replace(value, '\x1f', '\n');
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return overrides;
}

/// Compares field by field, because the text form is what is tested.
bool same(JobConfig& a, JobConfig& b) {
  return std::ranges::all_of(fields(), [&](const Field& field) {
    return std::visit([&]<class T>(T* left) { return *left == *std::get<T*>(field.slot(b)); },
                      field.slot(a));
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> overrides = overrides_in(text);
  auto loaded = load_job_text(text, "fuzz.toml", overrides);
  if (!loaded) {
    SORTIE_CHECK(loaded.error().code == sortie::ErrorCode::config);
    const std::string& message = loaded.error().message;
    SORTIE_CHECK(message.starts_with("fuzz.toml") || message.starts_with("--set "), "{}", message);
    return 0;
  }
  for (const Field& field : fields())
    SORTIE_CHECK(check_value(field, loaded->job).empty(), "{}", field.key);
  const std::string shown = to_toml(loaded->job);
  auto again = load_job_text(shown, "shown.toml");
  SORTIE_CHECK(again.has_value(), "{}\n{}", again ? "" : again.error().message, shown);
  SORTIE_CHECK(same(loaded->job, again->job), "\n{}", shown);
  SORTIE_CHECK(to_toml(again->job) == shown);
  // Each of the two forms for half of the inputs: a load of all keys takes 30 ms here.
  const std::string with_origin = show(*loaded, {.all = size % 2 == 0, .origin = true});
  auto annotated = load_job_text(with_origin, "origin.toml");
  SORTIE_CHECK(annotated.has_value(), "{}\n{}", annotated ? "" : annotated.error().message,
               with_origin);
  SORTIE_CHECK(same(loaded->job, annotated->job), "\n{}", with_origin);
  if (loaded->job.runner.hosts_file.empty())
    SORTIE_CHECK(job_hosts(loaded->job.runner).has_value());
  return 0;
}
