# Hosts of one machine, for tests: each has network, host name, processes, mounts and shared memory of its own;
# a bridge joins them. To be sourced by a script that runs under `hosts_enter`, so that all of it ends with it.
#
#   hosts_possible            true where such namespaces may be made
#   hosts_enter SCRIPT ...    runs a script where hosts can be made
#   hosts_make COUNT          hosts 10.77.0.1 .. 10.77.0.COUNT; $hosts_agent is mpirun's way to start there
#
# Who is not root becomes that of a user namespace, where the system allows it.
hosts_user=""
[ "$(id -u)" = 0 ] || hosts_user="--user --map-root-user"

hosts_possible() {
    # shellcheck disable=SC2086 # a list of options
    command -v ip >/dev/null 2>&1 && unshare $hosts_user --net --mount --pid --ipc --uts --fork true 2>/dev/null
}

hosts_enter() {
    # shellcheck disable=SC2086
    unshare $hosts_user --net --mount --pid --fork --kill-child --mount-proc bash "$@"
}

hosts_make() {
    hosts_folder=$1
    mkdir -p "$hosts_folder"
    ip link set lo up
    ip link add bridge0 type bridge
    ip addr add 10.77.0.254/24 dev bridge0
    ip link set bridge0 up
    number=1
    while [ $number -le "$2" ]; do
        unshare --net --mount --pid --ipc --uts --fork --kill-child bash -c "
            mount -t proc proc /proc
            mount -t tmpfs tmpfs /dev/shm
            hostname host$number
            echo ready >'$hosts_folder/host$number'
            exec sleep infinity" &
        outer=$!
        while [ ! -s "$hosts_folder/host$number" ]; do sleep 0.02; done
        inner=$(cat "/proc/$outer/task/$outer/children")
        inner=${inner%% *}
        ip link add "veth$number" type veth peer name eth0 netns "$inner"
        ip link set "veth$number" master bridge0 up
        nsenter -t "$inner" --net ip addr add "10.77.0.$number/24" dev eth0
        nsenter -t "$inner" --net ip link set eth0 up
        nsenter -t "$inner" --net ip link set lo up
        echo "$inner" >"$hosts_folder/10.77.0.$number"
        number=$((number + 1))
    done
    hosts_agent=$hosts_folder/agent
    cat >"$hosts_agent" <<AGENT
#!/bin/sh
# mpirun's remote shell: HOST COMMAND ...
host=\$1
shift
exec nsenter -t "\$(cat '$hosts_folder'/\$host)" --net --mount --pid --ipc --uts -- /bin/sh -c "\$*"
AGENT
    chmod +x "$hosts_agent"
}
