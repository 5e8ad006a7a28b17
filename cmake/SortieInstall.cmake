# cmake --install: programs, manual pages and completions. Pages and completions are written by the built sortie.
include(GNUInstallDirs)

set(share "${CMAKE_BINARY_DIR}/share")
set(completions "${share}/completions")
add_custom_command(OUTPUT "${share}/man1/sortie.1" "${completions}/sortie.bash"
  COMMAND "${CMAKE_COMMAND}" -E rm -rf "${share}"
  COMMAND "${CMAKE_COMMAND}" -E make_directory "${completions}"
  COMMAND sortie man --output-dir "${share}/man1"
  COMMAND sortie completion bash > "${completions}/sortie.bash"
  COMMAND sortie completion zsh > "${completions}/_sortie"
  COMMAND sortie completion fish > "${completions}/sortie.fish"
  DEPENDS sortie COMMENT "Writing manual pages and completions" VERBATIM)
add_custom_target(sortie_share ALL DEPENDS "${share}/man1/sortie.1")

install(TARGETS sortie sortie-runner sortie-train)
install(DIRECTORY "${share}/man1/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
install(FILES "${completions}/sortie.bash" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME sortie)
install(FILES "${completions}/_sortie" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
install(FILES "${completions}/sortie.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
