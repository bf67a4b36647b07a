#compdef xce-sandbox
# zsh completion for xce-sandbox(1). Written by test/support/surface/main.ts from the commands; do not edit.

_xce-sandbox() {
  local curcontext=$curcontext state line
  local -a words_here=(
    'config:The effective configuration'
    'epilog:End a job for its batch system: free its uid by proof, drain dirty nodes'
    'help:Show what a command does, and its flags'
    'launch:Run a command in the sandbox of a job on every node, or an MPI program'
    'lease:Uids of the pool, one per job attempt'
    'normalise:Hand the files of a job to its submitter, or look what would be handed over'
    'pki:Certificates and keys of the hosts'
    'prolog:Begin a job for its batch system: lease a uid, and ask every node'
    'reconcile:Compare the lease log with all nodes and the storage'
    'status:Show leases, and the sandboxes that the workers have'
    'stop:End every step of a job on all its nodes. Its lease stays'
    'worker:What a worker has to say of itself'
  )
  _arguments -C ': :->command' '*:: :->rest'
  case $state in
    command) _describe -t commands 'command' words_here ;;
    rest)
      case $words[1] in
        config) _xce-sandbox_config ;;
        epilog) _xce-sandbox_epilog ;;
        help) _xce-sandbox ;;
        launch) _xce-sandbox_launch ;;
        lease) _xce-sandbox_lease ;;
        normalise) _xce-sandbox_normalise ;;
        pki) _xce-sandbox_pki ;;
        prolog) _xce-sandbox_prolog ;;
        reconcile) _xce-sandbox_reconcile ;;
        status) _xce-sandbox_status ;;
        stop) _xce-sandbox_stop ;;
        worker) _xce-sandbox_worker ;;
      esac
      ;;
  esac
}

_xce-sandbox_config() {
  local curcontext=$curcontext state line
  local -a words_here=(
    'show:Show the effective configuration, and where each value comes from'
  )
  _arguments -C ': :->command' '*:: :->rest'
  case $state in
    command) _describe -t commands 'command' words_here ;;
    rest)
      case $words[1] in
        show) _xce-sandbox_config_show ;;
      esac
      ;;
  esac
}

_xce-sandbox_lease() {
  local curcontext=$curcontext state line
  local -a words_here=(
    'allocate:Lease one uid of the pool to a job attempt'
    'audit:Ask the name service about the uid of every lease'
    'compact:Begin a new file of the lease log with the state as it is'
    'dump:Write everything that the lease log holds as JSON lines'
    'expire:Put leases whose time is over into quarantine'
    'init:Create the lease log of this cluster and instance'
    'list:List the leases that hold a uid'
    'probe:Try whether storage keeps the promises of the lease log'
    'reclaim:Attest that a lost node of a lease is fenced off'
    'release:End a job and free its uid, by proof'
    'renew:Give an active lease a new term from now on'
    'repair:Go on in a new file where a crash left the lease log unfinished'
    'show:Show one lease, and what it waits for'
    'takeover:Make this controller the owner of the lease log'
    'verify:Check every byte of the lease log, without changing anything'
    'watch:Show what happens in the lease log from now on, whichever host writes it'
  )
  _arguments -C ': :->command' '*:: :->rest'
  case $state in
    command) _describe -t commands 'command' words_here ;;
    rest)
      case $words[1] in
        allocate) _xce-sandbox_lease_allocate ;;
        audit) _xce-sandbox_lease_audit ;;
        compact) _xce-sandbox_lease_compact ;;
        dump) _xce-sandbox_lease_dump ;;
        expire) _xce-sandbox_lease_expire ;;
        init) _xce-sandbox_lease_init ;;
        list) _xce-sandbox_lease_list ;;
        probe) _xce-sandbox_lease_probe ;;
        reclaim) _xce-sandbox_lease_reclaim ;;
        release) _xce-sandbox_lease_release ;;
        renew) _xce-sandbox_lease_renew ;;
        repair) _xce-sandbox_lease_repair ;;
        show) _xce-sandbox_lease_show ;;
        takeover) _xce-sandbox_lease_takeover ;;
        verify) _xce-sandbox_lease_verify ;;
        watch) _xce-sandbox_lease_watch ;;
      esac
      ;;
  esac
}

_xce-sandbox_pki() {
  local curcontext=$curcontext state line
  local -a words_here=(
    'init:Create the certificate authority and the ticket key of this cluster'
    'issue:Issue the certificate and keys of one host'
    'revoke:Revoke the certificates of a host'
  )
  _arguments -C ': :->command' '*:: :->rest'
  case $state in
    command) _describe -t commands 'command' words_here ;;
    rest)
      case $words[1] in
        init) _xce-sandbox_pki_init ;;
        issue) _xce-sandbox_pki_issue ;;
        revoke) _xce-sandbox_pki_revoke ;;
      esac
      ;;
  esac
}

_xce-sandbox_worker() {
  local curcontext=$curcontext state line
  local -a words_here=(
    'metrics:Show what a worker has counted, in the text format of Prometheus'
  )
  _arguments -C ': :->command' '*:: :->rest'
  case $state in
    command) _describe -t commands 'command' words_here ;;
    rest)
      case $words[1] in
        metrics) _xce-sandbox_worker_metrics ;;
      esac
      ;;
  esac
}

_xce-sandbox_config_show() {
  _arguments -s -S \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_epilog() {
  _arguments -s -S \
    '--attempt=''[Attempt (requeue count) of the job; default: as the batch system says, or 0]:N: ' \
    '(-j --job)'{-j+,--job=}'[Job id, exactly as the batch system writes it]:ID: ' \
    '--scheduler=''[Whose hook this is; default: \[hooks\] scheduler]:NAME:(slurm pbs flux xce)' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_launch() {
  _arguments -s -S \
    '--append''[Write behind what these files hold; default: none may exist]' \
    '--attempt=''[Attempt (requeue count) of the job; default: the latest one with a lease]:N: ' \
    '--chdir=''[Working directory; default: the workspace]:DIR:_files -/' \
    '--cpu-quota=''[Processor time on each node; 100% is one processor]:PERCENT: ' \
    '--cpus=''[Processors of each node to run on]:LIST: ' \
    '*''--device=''[Only these of the configured devices]:PATH: ' \
    '*'{-e+,--env=}'[Set a variable, or pass one on from here]:NAME =VALUE: ' \
    '*''--env-file=''[Set the variables of a file, NAME=VALUE on each line]:FILE:_files' \
    '--error=''[Write standard error to this file; default: as --output]:PATTERN: ' \
    '(-j --job)'{-j+,--job=}'[Job id, exactly as the batch system writes it]:ID: ' \
    '--kill-on-bad-exit''[End all tasks as soon as one ends badly; default: the others go on]' \
    '(-l --label)'{-l,--label}'[Put the node before each line]' \
    '--lease=''[Lease number, in place of --job]:N: ' \
    '--memory=''[Memory on each node]:SIZE: ' \
    '--mpi=''[Start an MPI program from the first node: with prterun (Open MPI 5), mpirun (Open MPI 4), or mpiexec (MPICH); alone: prrte]::prrte orte hydra:(prrte orte hydra)' \
    '*''--mpi-option=''[MPI: a further word for the launcher, as --mpi-option=--map-by]:WORD: ' \
    '--nodes=''[Only these nodes of the lease]:LIST: ' \
    '(-o --output)'{-o+,--output=}'[Write output to this file, not here; %j job, %a attempt, %n node, %t task]:PATTERN: ' \
    '--profile=''[Start with the variables of this environment of the site]:NAME: ' \
    '(-n --ranks)'{-n+,--ranks=}'[MPI: ranks in all; default: one per node]:N: ' \
    '--stdin=''[Who reads standard input: none, all, or a node]:none all NODE:(none all)' \
    '--tasks-max=''[Processes and threads on each node]:N: ' \
    '--tasks-per-node=''[Run the command so many times on each node; MPI: slots of each node]:N: ' \
    '--timeout=''[End the job after this time]:TIME: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]' \
    '(-):command of the job:_command_names -e' \
    '*::argument:_normal'
}

_xce-sandbox_lease_allocate() {
  _arguments -s -S \
    '--attempt=''[Attempt (requeue count) of the job; default 0]:N: ' \
    '(-j --job)'{-j+,--job=}'[Job id, exactly as the batch system writes it]:ID: ' \
    '(-n --nodes)'{-n+,--nodes=}'[Nodes of the job]:LIST: ' \
    '--submitter=''[Who gets the files back]:UID  GID: ' \
    '--ttl=''[How long the job may run before its lease must be renewed]:TIME: ' \
    '--workspace=''[The \[storage\] of the workspace, or "none"; default: the first that has one]:NAME: ' \
    '*''--write=''[Further path on shared storage that the job may write; walked whole afterwards]:PATH: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_audit() {
  _arguments -s -S \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_compact() {
  _arguments -s -S \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_dump() {
  _arguments -s -S \
    '--epoch=''[This epoch; default: the newest complete one]:N: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_expire() {
  _arguments -s -S \
    '--all''[Every active lease]' \
    '--attempt=''[Attempt (requeue count) of the job; default: the latest one with a lease]:N: ' \
    '(-j --job)'{-j+,--job=}'[Job id, exactly as the batch system writes it]:ID: ' \
    '--lease=''[Lease number, in place of --job]:N: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_init() {
  _arguments -s -S \
    '--peer=''[Controller on which "lease probe --listen" runs; for shared storage]:HOST =ADDRESS  PORT: ' \
    '--timeout=''[How long the probe with it may take]:TIME: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_list() {
  _arguments -s -S \
    '*''--status=''[Only leases in this state]:active draining normalising quarantined:(active draining normalising quarantined)' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_probe() {
  _arguments -s -S \
    '--listen''[Wait for one probe of another controller]' \
    '--peer=''[Controller on which "lease probe --listen" runs]:HOST =ADDRESS  PORT: ' \
    '--timeout=''[How long it may take, the wait for it included]:TIME: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_reclaim() {
  _arguments -s -S \
    '--attempt=''[Attempt (requeue count) of the job; default: the latest one with a lease]:N: ' \
    '--by=''[Who says so; default: who logged in]:WHO: ' \
    '(-j --job)'{-j+,--job=}'[Job id, exactly as the batch system writes it]:ID: ' \
    '--lease=''[Lease number, in place of --job]:N: ' \
    '--node=''[The node that is off, or cut off from all storage]:NODE: ' \
    '--reason=''[How this is known; kept]:TEXT: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_release() {
  _arguments -s -S \
    '--attempt=''[Attempt (requeue count) of the job; default: the latest one with a lease]:N: ' \
    '(-j --job)'{-j+,--job=}'[Job id, exactly as the batch system writes it]:ID: ' \
    '--lease=''[Lease number, in place of --job]:N: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_renew() {
  _arguments -s -S \
    '--attempt=''[Attempt (requeue count) of the job; default: the latest one with a lease]:N: ' \
    '(-j --job)'{-j+,--job=}'[Job id, exactly as the batch system writes it]:ID: ' \
    '--lease=''[Lease number, in place of --job]:N: ' \
    '--ttl=''[Length of the new term; default: \[lease\] ttl]:TIME: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_repair() {
  _arguments -s -S \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_show() {
  _arguments -s -S \
    '--attempt=''[Attempt (requeue count) of the job; default: the latest one with a lease]:N: ' \
    '(-j --job)'{-j+,--job=}'[Job id, exactly as the batch system writes it]:ID: ' \
    '--lease=''[Lease number, in place of --job]:N: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_takeover() {
  _arguments -s -S \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_verify() {
  _arguments -s -S \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_lease_watch() {
  _arguments -s -S \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_normalise() {
  _arguments -s -S \
    '--attempt=''[Attempt (requeue count) of the job; default: the latest one with a lease]:N: ' \
    '(-j --job)'{-j+,--job=}'[Job id, exactly as the batch system writes it]:ID: ' \
    '--lease=''[Lease number, in place of --job]:N: ' \
    '--plan''[Walk and report; change nothing]' \
    '--verify''[Walk and prove that nothing is left; change nothing]' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_pki_init() {
  _arguments -s -S \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_pki_issue() {
  _arguments -s -S \
    '--days=''[Validity; default 365 days]:N: ' \
    '--node=''[Name of the host]:NAME: ' \
    '--out=''[Directory to write]:DIR:_files -/' \
    '--role=''[What the host does]:controller worker operator storage:(controller worker operator storage)' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_pki_revoke() {
  _arguments -s -S \
    '--node=''[All certificates that were issued to this host]:NAME: ' \
    '--serial=''[One certificate by its serial number]:HEX: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_prolog() {
  _arguments -s -S \
    '--attempt=''[Attempt (requeue count) of the job; default: as the batch system says, or 0]:N: ' \
    '(-j --job)'{-j+,--job=}'[Job id, exactly as the batch system writes it]:ID: ' \
    '(-n --nodes)'{-n+,--nodes=}'[Nodes of the job]:LIST: ' \
    '--scheduler=''[Whose hook this is; default: \[hooks\] scheduler]:NAME:(slurm pbs flux xce)' \
    '--submitter=''[Who gets the files back]:UID  GID: ' \
    '--ttl=''[How long the job may run; default: until its end, and \[hooks\] grace]:TIME: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_reconcile() {
  _arguments -s -S \
    '--apply''[Release what is over, and end what nodes have of leases that have ended]' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_status() {
  _arguments -s -S \
    '(-n --nodes)'{-n+,--nodes=}'[Only these nodes]:LIST: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_stop() {
  _arguments -s -S \
    '--attempt=''[Attempt (requeue count) of the job; default: the latest one with a lease]:N: ' \
    '(-j --job)'{-j+,--job=}'[Job id, exactly as the batch system writes it]:ID: ' \
    '--lease=''[Lease number, in place of --job]:N: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

_xce-sandbox_worker_metrics() {
  _arguments -s -S \
    '(-n --node)'{-n+,--node=}'[Node whose worker is asked; default: this host]:NODE: ' \
    '--config=''[Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini]:FILE:_files' \
    '--json''[Write the result as one JSON document]'
}

if [[ $funcstack[1] == _xce-sandbox ]]; then
  _xce-sandbox "$@"
else
  compdef _xce-sandbox xce-sandbox
fi
