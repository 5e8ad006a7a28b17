// Examples of every verb of sortie-train, for its help and its manual pages.
#pragma once

namespace CLI {
class App;
}

namespace sortie::trainer {

/// Sets the footers of all verbs. A verb without examples is a bug.
void set_examples(CLI::App& root);

}  // namespace sortie::trainer
