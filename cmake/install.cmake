# cmake/install.cmake: what `cmake --install` puts where, for find_package and for pkg-config. All of
# it may be moved afterwards as a whole.
include(CMakePackageConfigHelpers)

set(MINIM_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/minim)
foreach(lib ${MINIM_LIBRARIES})
  get_target_property(kind ${lib} EXPORT_NAME)
  install(TARGETS ${lib} EXPORT minim-${kind} DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT minim-${kind} NAMESPACE minim:: DESTINATION ${MINIM_PACKAGE_DIR})
endforeach()
install(FILES include/minim.h include/minim_ext.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET minim_cli)
  install(TARGETS minim_cli DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# SameMinorVersion: as the SONAME, see docs/embedding.md.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatible SameMinorVersion)
else()
  set(compatible SameMajorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/minim-config-version.cmake
  COMPATIBILITY ${compatible})
# The way from the .pc file back to the prefix, whatever the library folder is called.
file(RELATIVE_PATH MINIM_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/minim.pc.in ${PROJECT_BINARY_DIR}/minim.pc @ONLY)
install(FILES cmake/minim-config.cmake ${PROJECT_BINARY_DIR}/minim-config-version.cmake
  DESTINATION ${MINIM_PACKAGE_DIR})
install(FILES ${PROJECT_BINARY_DIR}/minim.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
