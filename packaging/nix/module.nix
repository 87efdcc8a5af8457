# The service of cofferdam over HTTP for NixOS.
#
#   services.cofferdam.enable = true;
#
# Cells have the programs of /usr, and NixOS has none there. So the service has a /usr of its own: programs that load no
# library, since no cell sees the store.
self:
{
  config,
  lib,
  pkgs,
  ...
}:

let
  cfg = config.services.cofferdam;

  system = pkgs.runCommand "cofferdam-system" { } ''
    mkdir -p $out/usr/bin
    for directory in ${lib.concatMapStringsSep " " (program: "${lib.getBin program}/bin") cfg.programs}; do
      cp --dereference --no-clobber "$directory"/* $out/usr/bin/
    done
    test -x $out/usr/bin/bash
    test -x $out/usr/bin/sh || ln -s bash $out/usr/bin/sh
  '';
in
{
  options.services.cofferdam = {
    enable = lib.mkEnableOption "cofferdam, a sandbox for agents, over HTTP";

    package = lib.mkOption {
      type = lib.types.package;
      default = self.packages.${pkgs.stdenv.hostPlatform.system}.default;
      defaultText = lib.literalExpression "the package of the flake";
      description = "The package with the program and its units.";
    };

    address = lib.mkOption {
      type = lib.types.str;
      default = "127.0.0.1:8080";
      description = "Where systemd listens. If other machines reach it, the server starts only with a token and TLS.";
    };

    programs = lib.mkOption {
      type = lib.types.listOf lib.types.package;
      default = with pkgs.pkgsStatic; [
        bash
        bc
        coreutils
        diffutils
        findutils
        gawk
        gnugrep
        gnused
        gnutar
        gzip
      ];
      defaultText = lib.literalExpression "bash, bc, coreutils and other usual programs of pkgsStatic";
      description = "What cells have in /usr/bin. Bash has to be among them, and each has to be linked statically.";
    };

    configuration = lib.mkOption {
      type = lib.types.nullOr lib.types.path;
      default = null;
      example = "/etc/cofferdam-http";
      description = "Directory with cofferdam.toml of the service.";
    };
  };

  config = lib.mkIf cfg.enable {
    users.users.cofferdam = {
      isSystemUser = true;
      group = "cofferdam";
      home = "/var/lib/cofferdam";
    };
    users.groups.cofferdam = { };

    environment.systemPackages = [ cfg.package ];
    # The units of the package, and what is different here.
    systemd.packages = [ cfg.package ];
    systemd.sockets.cofferdam = {
      wantedBy = [ "sockets.target" ];
      # The empty one removes the address of the unit.
      listenStreams = [
        ""
        cfg.address
      ];
    };
    systemd.services.cofferdam = {
      environment = lib.mkIf (cfg.configuration != null) {
        COFFERDAM_CONFIG = toString cfg.configuration;
      };
      serviceConfig.BindReadOnlyPaths = [
        "${system}/usr:/usr"
        "${system}/usr/bin:/bin"
      ];
    };
  };
}
