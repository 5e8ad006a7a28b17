# cmake --install: programs, manual pages and completions. Pages and completions are written by the built programs.
include(GNUInstallDirs)

set(share "${CMAKE_BINARY_DIR}/share")
set(completions "${share}/completions")
set(pages_and_completions "")
foreach(program sortie sortie-train)
  list(APPEND pages_and_completions
    COMMAND ${program} man --output-dir "${share}/man1"
    COMMAND ${program} completion bash > "${completions}/${program}.bash"
    COMMAND ${program} completion zsh > "${completions}/_${program}"
    COMMAND ${program} completion fish > "${completions}/${program}.fish")
endforeach()
add_custom_command(OUTPUT "${share}/man1/sortie.1" "${completions}/sortie.bash"
  COMMAND "${CMAKE_COMMAND}" -E rm -rf "${share}"
  COMMAND "${CMAKE_COMMAND}" -E make_directory "${completions}"
  ${pages_and_completions}
  DEPENDS sortie sortie-train COMMENT "Writing manual pages and completions" VERBATIM)
add_custom_target(sortie_share ALL DEPENDS "${share}/man1/sortie.1")

install(TARGETS sortie sortie-runner sortie-train)
install(DIRECTORY "${share}/man1/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
foreach(program sortie sortie-train)
  install(FILES "${completions}/${program}.bash" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME ${program})
  install(FILES "${completions}/_${program}" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
  install(FILES "${completions}/${program}.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
endforeach()
install(FILES "${CMAKE_SOURCE_DIR}/share/sortie_progress.py" DESTINATION "${CMAKE_INSTALL_DATADIR}/sortie")
