/**
 * Files that take the output of a job. Their bytes are the job's, so it matters where they lie: nobody but root may
 * be able to lead the name elsewhere, no link is followed, and what is there already is never emptied.
 */
import { constants } from 'node:fs';
import { type FileHandle, open, unlink } from 'node:fs/promises';
import { resolve } from 'node:path';
import { asXceError, errnoOf, XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { requireTrustedParents } from './trusted-file.ts';

export type OutputFile = {
  /** All of it, behind what others have written there meanwhile. Throws 'output-file'. */
  write(bytes: Uint8Array): Promise<void>;
  /** Throws 'output-file' where the storage tells only now that bytes were lost. */
  close(): Promise<void>;
  /** Closes it, and removes it if it was made here. For a file that nothing was written to. */
  discard(): Promise<void>;
};

/** 'new': nothing may have that name. 'append': a regular file of root may be there. */
export type OpenMode = 'new' | 'append';

const failed = (what: string, path: string, error: unknown): XceError =>
  new XceError('output-file', `cannot ${what} ${escapeText(path)}: ${errnoOf(error) ?? String(error)}`, {
    at: path,
    cause: error,
  });

const requirePlace = (path: string): void => {
  try {
    requireTrustedParents(path);
  } catch (error) {
    const { message, facts } = asXceError(error);
    throw new XceError('output-file', message, {
      ...facts,
      next: 'name a file below directories that only root may write, or redirect the output of the command',
    });
  }
};

const requireOwnFile = async (file: FileHandle, path: string): Promise<void> => {
  const facts = await file.stat();
  if (facts.isFile() && facts.uid === 0 && facts.nlink === 1) return;
  throw new XceError('output-file', `${escapeText(path)} is not a regular file of root with one name`, {
    at: path,
  });
};

/** Opens a file, by a path that counts from the working directory. The umask decides its mode. Throws 'output-file'. */
export const openOutputFile = async (name: string, mode: OpenMode): Promise<OutputFile> => {
  const path = resolve(name);
  requirePlace(path);
  const { O_WRONLY, O_APPEND, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK } = constants;
  const flags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | (mode === 'new' ? O_EXCL : 0);
  let file: FileHandle;
  try {
    file = await open(path, flags, 0o666);
  } catch (error) {
    if (errnoOf(error) !== 'EEXIST') throw failed('open', path, error);
    throw new XceError('output-file', `${escapeText(path)} is there already`, {
      at: path,
      next: 'give --append, or another name',
    });
  }
  try {
    await requireOwnFile(file, path);
  } catch (error) {
    await file.close();
    throw error;
  }
  return {
    write: async (bytes) => {
      try {
        for (let done = 0; done < bytes.length; ) {
          done += (await file.write(bytes, done, bytes.length - done)).bytesWritten;
        }
      } catch (error) {
        throw failed('write to', path, error);
      }
    },
    close: async () => {
      try {
        await file.close();
      } catch (error) {
        throw failed('close', path, error);
      }
    },
    discard: async () => {
      try {
        await file.close();
        if (mode === 'new') await unlink(path);
      } catch (error) {
        throw failed('remove', path, error);
      }
    },
  };
};
