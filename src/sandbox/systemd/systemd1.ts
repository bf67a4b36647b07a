/**
 * The service manager, as far as the backend needs it. What a signal says is never believed: a signal only makes
 * us ask again, because any local user may send one (only answers to calls are vouched for by the bus daemon).
 */
import { assert, XceError } from '../../base/errors.ts';
import { Bus, busErrorOf } from '../../os/dbus.ts';
import { type DbusValue, variant } from '../../os/dbus-wire.ts';
import type { UnitDraft } from '../properties.ts';
import type { ServiceEnd } from '../step-result.ts';

const SYSTEMD = 'org.freedesktop.systemd1';
const MANAGER_PATH = '/org/freedesktop/systemd1';
const MANAGER = `${SYSTEMD}.Manager`;
const UNIT = `${SYSTEMD}.Unit`;
const SERVICE = `${SYSTEMD}.Service`;
const PROPERTIES = 'org.freedesktop.DBus.Properties';
const UNIT_EXISTS = `${SYSTEMD}.UnitExists`;
const TO_MANAGER = { destination: SYSTEMD, path: MANAGER_PATH, interface: MANAGER } as const;
/**
 * Signals that are heard: changes of any unit, and that systemd leaves the bus or is back. Not one rule for each unit
 * that is watched, because dbus-daemon(1) takes 512 of a connection (max_match_rules_per_connection).
 */
const RULES = [
  `type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='${SYSTEMD}'`,
  `type='signal',sender='${SYSTEMD}',path_namespace='${MANAGER_PATH}/unit',interface='${PROPERTIES}',member='PropertiesChanged'`,
  `type='signal',sender='${SYSTEMD}',path='${MANAGER_PATH}',interface='${MANAGER}',member='JobRemoved'`,
  `type='signal',sender='${SYSTEMD}',path='${MANAGER_PATH}',interface='${MANAGER}',member='UnitRemoved'`,
] as const;
const LOOKS_MAX = 5;
const RETURN_TIMEOUT_MS = 30_000;

/** The state of a unit that decides whether it is the one we made. */
export type UnitState = {
  readonly loadState: string;
  readonly activeState: string;
  /** Hex; empty while the unit has never run. */
  readonly invocationId: string;
};

export type ListedUnit = {
  readonly name: string;
  readonly load: string;
  readonly active: string;
};

/** Path of a unit's object: bytes outside of [A-Za-z0-9], and a digit at the start, as _xx. */
export const unitPath = (unit: string): string =>
  `${MANAGER_PATH}/unit/${Array.from(Buffer.from(unit), (byte, index) => {
    const character = String.fromCharCode(byte);
    return /[A-Za-z]/.test(character) || (index > 0 && /[0-9]/.test(character))
      ? character
      : `_${byte.toString(16).padStart(2, '0')}`;
  }).join('')}`;

const asText = (value: DbusValue | undefined): string => (typeof value === 'string' ? value : '');
const asNumber = (value: DbusValue | undefined): number => (typeof value === 'number' ? value : -1);
const asLarge = (value: DbusValue | undefined): bigint => (typeof value === 'bigint' ? value : -1n);
const asList = (value: DbusValue | undefined): readonly DbusValue[] =>
  Array.isArray(value) ? (value as readonly DbusValue[]) : [];
const asHex = (value: DbusValue | undefined): string =>
  Buffer.from(asList(value).map(asNumber)).toString('hex');

/** While systemd executes itself anew it is off the bus for a moment. */
const isAway = (error: unknown): boolean => {
  const name = busErrorOf(error) ?? '';
  return ['NoReply', 'ServiceUnknown', 'NameHasNoOwner', 'Disconnected'].some(
    (short) => name === `org.freedesktop.DBus.Error.${short}`,
  );
};

const isGone = (error: unknown): boolean => {
  const name = busErrorOf(error);
  return name === `${SYSTEMD}.NoSuchUnit` || name === 'org.freedesktop.DBus.Error.UnknownObject';
};

export type UnitWatch = {
  /** Resolves at the next chance that the unit has changed since the last call. Rejects once the bus is gone. */
  next(signal?: AbortSignal): Promise<void>;
  /** Whether the connection that it was made on is gone. */
  readonly isLost: boolean;
  close(): void;
};

/** A unit that startTransient has made. `hasStarted` is false when it never became active. */
export type HeldUnit = { readonly watch: UnitWatch; readonly hasStarted: boolean };

export class Systemd {
  #bus: Promise<Bus> | undefined;

  /** The connection, made when it is first needed and again after it was lost. */
  async #connected(): Promise<Bus> {
    const known = await this.#bus?.catch(() => undefined);
    if (known !== undefined && !known.isClosed) return known;
    this.#bus = Systemd.#open();
    return await this.#bus;
  }

  static async #open(): Promise<Bus> {
    const bus = await Bus.connect();
    try {
      await Promise.all(RULES.map((rule) => bus.addMatch(rule)));
      // Without a subscriber systemd sends no signals about units.
      await Systemd.#patiently(bus, () =>
        bus.call({ ...TO_MANAGER, member: 'Subscribe', signature: '', body: [] }),
      );
      return bus;
    } catch (error) {
      bus.close();
      throw error;
    }
  }

  /** Repeats a call that may be repeated while systemd is off the bus: it executes itself anew, or the bus did. */
  static async #patiently<T>(bus: Bus, ask: () => Promise<T>): Promise<T> {
    for (let tries = 1; ; tries += 1) {
      try {
        return await ask();
      } catch (error) {
        if (!isAway(error) || tries === LOOKS_MAX) throw error;
        await Systemd.#awaitReturn(bus);
      }
    }
  }

  async #call(
    member: string,
    signature: string,
    body: readonly DbusValue[],
    fds: readonly number[] = [],
  ): Promise<readonly DbusValue[]> {
    const bus = await this.#connected();
    return await bus.call({ ...TO_MANAGER, member, signature, body }, { fds });
  }

  /** A call that may be repeated, also on a new connection when the old one turns out to be gone. */
  async #look<T>(ask: (bus: Bus) => Promise<T>): Promise<T> {
    for (let tries = 1; ; tries += 1) {
      const bus = await this.#connected();
      try {
        return await Systemd.#patiently(bus, () => ask(bus));
      } catch (error) {
        if (!bus.isClosed || tries === LOOKS_MAX) throw error;
      }
    }
  }

  static async #awaitReturn(bus: Bus): Promise<void> {
    let wake = (): void => undefined;
    const limit = AbortSignal.timeout(RETURN_TIMEOUT_MS);
    const stop = bus.onSignal(() => wake());
    try {
      while (!limit.aborted && !bus.isClosed) {
        const changed = new Promise<void>((resolve) => {
          wake = resolve;
          limit.addEventListener('abort', () => resolve(), { once: true });
        });
        if (await bus.hasOwner(SYSTEMD)) return;
        await changed;
      }
    } finally {
      stop();
    }
  }

  async #get(unit: string, face: string, names: readonly string[]): Promise<readonly DbusValue[]> {
    const to = { destination: SYSTEMD, path: unitPath(unit), interface: PROPERTIES } as const;
    const answers = await this.#look((bus) =>
      Promise.all(
        names.map((name) => bus.call({ ...to, member: 'Get', signature: 'ss', body: [face, name] })),
      ),
    );
    return answers.map(([value]) => value ?? '');
  }

  /** Number at the start of the version, such as 257. Throws XceError 'systemd'. */
  async readVersion(): Promise<number> {
    const bus = await this.#connected();
    const [value] = await bus.call({
      destination: SYSTEMD,
      path: MANAGER_PATH,
      interface: PROPERTIES,
      member: 'Get',
      signature: 'ss',
      body: [MANAGER, 'Version'],
    });
    const number = /^v?(\d{1,5})/.exec(asText(value))?.[1];
    if (number === undefined) throw new XceError('systemd', 'systemd names no version');
    return Number(number);
  }

  /** State of one unit; a name that systemd does not know has loadState 'not-found'. Throws XceError 'systemd'. */
  async readUnit(unit: string): Promise<UnitState> {
    const [load, active, id] = await this.#get(unit, UNIT, ['LoadState', 'ActiveState', 'InvocationID']);
    return { loadState: asText(load), activeState: asText(active), invocationId: asHex(id) };
  }

  /** The uid and gid that systemd uses for a service; 2^32 - 1 for none. Throws XceError 'systemd'. */
  async readIdentity(unit: string): Promise<{ readonly uid: number; readonly gid: number }> {
    const [uid, gid] = await this.#get(unit, SERVICE, ['UID', 'GID']);
    return { uid: asNumber(uid), gid: asNumber(gid) };
  }

  /** How a service ended. It must be held (see startTransient), or systemd makes one up. */
  async readEnd(unit: string): Promise<ServiceEnd> {
    const [[result, code, status, mainExit], [id, activeExit]] = await Promise.all([
      this.#get(unit, SERVICE, [
        'Result',
        'ExecMainCode',
        'ExecMainStatus',
        'ExecMainExitTimestampMonotonic',
      ]),
      this.#get(unit, UNIT, ['InvocationID', 'ActiveExitTimestampMonotonic']),
    ]);
    return {
      invocationId: asHex(id),
      result: asText(result),
      code: asNumber(code),
      status: asNumber(status),
      mainExitUs: asLarge(mainExit),
      activeExitUs: asLarge(activeExit),
    };
  }

  /** All loaded units whose names match a pattern, in whatever state. Throws XceError 'systemd'. */
  async listUnits(pattern: string): Promise<readonly ListedUnit[]> {
    const [list] = await this.#look((bus) =>
      bus.call({ ...TO_MANAGER, member: 'ListUnitsByPatterns', signature: 'asas', body: [[], [pattern]] }),
    );
    return asList(list).map((row) => {
      const [name, , load, active] = asList(row);
      return { name: asText(name), load: asText(load), active: asText(active) };
    });
  }

  /** Has systemd make a unit and start it. Of a name that is masked systemd only says that there is such a unit. */
  async #make(
    { name, properties }: UnitDraft,
    further: readonly DbusValue[],
    fds: readonly number[] = [],
  ): Promise<void> {
    try {
      await this.#call('StartTransientUnit', 'ssa(sv)a(sa(sv))', [name, 'fail', properties, further], fds);
    } catch (error) {
      // A state that cannot be read explains nothing, and the first error decides whose the unit is.
      const unit =
        busErrorOf(error) === UNIT_EXISTS ? await this.readUnit(name).catch(() => undefined) : undefined;
      if (unit?.loadState !== 'masked') throw error;
      throw new XceError('systemd', `unit ${name} is masked`, {
        at: name,
        unchanged: 'nothing was started',
        next: `systemctl unmask ${name}; systemctl unmask --runtime ${name}`,
        detail: { busError: UNIT_EXISTS },
        cause: error,
      });
    }
  }

  /**
   * Makes a transient unit and waits until it has started, or has not. The unit stays in memory, with its results,
   * until it is released or this process ends; the caller closes the watch. `fds` are for `h` properties. Throws
   * XceError 'systemd' when systemd made no unit (busErrorOf says why: UnitExists for a name that is taken).
   */
  async startTransient(draft: UnitDraft, fds: readonly number[] = []): Promise<HeldUnit> {
    const watch = await this.watch(draft.name);
    try {
      const properties = [...draft.properties, ['AddRef', variant('b', true)] as const];
      await this.#make({ ...draft, properties }, [], fds);
      return { watch, hasStarted: await this.#awaitStart(draft.name, watch) };
    } catch (error) {
      watch.close();
      // systemd may have made the unit and refused to start it. A name that was taken is not ours to let go.
      const name = busErrorOf(error);
      if (name !== undefined && name !== UNIT_EXISTS) await this.release(draft.name);
      throw error;
    }
  }

  /** Makes a timer and the service it starts, and waits until the timer runs. Neither is held. */
  async startTimer(timer: UnitDraft, service: UnitDraft): Promise<void> {
    const watch = await this.watch(timer.name);
    try {
      await this.#make(timer, [[service.name, service.properties]]);
      if (!(await this.#awaitStart(timer.name, watch))) {
        throw new XceError('systemd', `${timer.name} did not start`);
      }
    } finally {
      watch.close();
    }
  }

  /** Makes a slice. It needs no waiting: what is put into it is started after it. */
  async startSlice(slice: UnitDraft): Promise<void> {
    await this.#make(slice, []);
  }

  /** Starts a unit and waits for it. Throws XceError 'systemd'. */
  async start(unit: string): Promise<void> {
    const watch = await this.watch(unit);
    try {
      await this.#call('StartUnit', 'ss', [unit, 'replace']);
      if (!(await this.#awaitStart(unit, watch))) throw new XceError('systemd', `${unit} did not start`);
    } finally {
      watch.close();
    }
  }

  /** A unit that is quick has ended again when we look: what counts is whether it ever was active. */
  async #awaitStart(unit: string, watch: UnitWatch): Promise<boolean> {
    for (;;) {
      const [job, entered] = await this.#get(unit, UNIT, ['Job', 'ActiveEnterTimestampMonotonic']);
      if (asNumber(asList(job)[0]) === 0) return asLarge(entered) > 0n;
      await watch.next();
    }
  }

  /** Holds a loaded unit as startTransient does, after the connection that held it was lost. Throws XceError
   * 'systemd' when there is no such unit any more. */
  async hold(unit: string): Promise<UnitWatch> {
    const watch = await this.watch(unit);
    try {
      await this.#look((bus) => bus.call({ ...TO_MANAGER, member: 'RefUnit', signature: 's', body: [unit] }));
      return watch;
    } catch (error) {
      watch.close();
      throw error;
    }
  }

  /** Lets a unit that startTransient holds go. Without effect on one that is not held. */
  async release(unit: string): Promise<void> {
    try {
      await this.#call('UnrefUnit', 's', [unit]);
    } catch (error) {
      if (!isGone(error) && busErrorOf(error) !== `${SYSTEMD}.NotReferenced`) throw error;
    }
  }

  /** Stops units and waits until none of them has a process; ones that are not loaded are fine. Throws XceError
   * 'systemd', or 'timeout'. */
  async stop(units: readonly string[], timeoutMs: number): Promise<void> {
    const limit = AbortSignal.timeout(timeoutMs);
    const results = await Promise.allSettled(units.map((unit) => this.#stopOne(unit, limit)));
    for (const result of results) if (result.status === 'rejected') throw result.reason;
  }

  async #stopOne(unit: string, limit: AbortSignal): Promise<void> {
    for (let tries = 1; ; tries += 1) {
      const watch = await this.watch(unit);
      try {
        await this.#call('StopUnit', 'ss', [unit, 'replace']);
        for (;;) {
          const [job, active] = await this.#get(unit, UNIT, ['Job', 'ActiveState']);
          const isIdle = asNumber(asList(job)[0]) === 0;
          if (isIdle && (active === 'inactive' || active === 'failed')) return;
          if (limit.aborted)
            throw new XceError('timeout', `${unit} is still ${asText(active)} after its stop`);
          await watch.next(limit);
        }
      } catch (error) {
        if (isGone(error)) return;
        if (!watch.isLost || tries === LOOKS_MAX) throw error;
      } finally {
        watch.close();
      }
    }
  }

  /** Sends a signal to the main process of a unit. False when there is no such unit or process any more. */
  async signalMain(unit: string, signal: number): Promise<boolean> {
    try {
      await this.#call('KillUnit', 'ssi', [unit, 'main', signal]);
      return true;
    } catch (error) {
      if (isGone(error) || busErrorOf(error) === `${SYSTEMD}.NoSuchProcess`) return false;
      throw error;
    }
  }

  /** Forgets that a unit has failed. */
  async resetFailed(unit: string): Promise<void> {
    try {
      await this.#call('ResetFailedUnit', 's', [unit]);
    } catch (error) {
      if (!isGone(error)) throw error;
    }
  }

  /** Makes systemd read all unit files again. */
  async reload(): Promise<void> {
    await this.#call('Reload', '', []);
  }

  /** Watches one unit. Nothing runs while it does not change. */
  async watch(unit: string): Promise<UnitWatch> {
    assert(/^[A-Za-z0-9_.:-]+$/.test(unit), 'a unit name needs no quoting in a match rule');
    const bus = await this.#connected();
    const path = unitPath(unit);
    let hasChanged = false;
    let wake = (): void => undefined;
    const onChange = (): void => {
      hasChanged = true;
      wake();
    };
    const stopSignals = bus.onSignal((signal) => {
      const [first, , third] = signal.body;
      // The last: systemd is back, and what happened meanwhile may not be told.
      if (signal.path === path || third === unit || first === unit || first === SYSTEMD) onChange();
    });
    const stopClose = bus.onClose(onChange);
    return {
      get isLost() {
        return bus.isClosed;
      },
      next: async (signal) => {
        if (!hasChanged && signal?.aborted !== true) {
          await new Promise<void>((resolve) => {
            const onAbort = (): void => wake();
            signal?.addEventListener('abort', onAbort);
            wake = () => {
              signal?.removeEventListener('abort', onAbort);
              resolve();
            };
          });
        }
        wake = () => undefined;
        hasChanged = false;
        if (bus.isClosed) throw new XceError('systemd', 'the connection to the system bus was lost');
      },
      close: () => {
        stopSignals();
        stopClose();
      },
    };
  }
}
