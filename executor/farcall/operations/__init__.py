"""Operations on existing jobs: find, explain, describe, cancel, retry. No output."""
